package bus

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of the bus need root: they show what other users may do")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
