package store_test

import (
	"os"
	"testing"

	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
)

// TestMain passes validate.Object to the tests in this package, which cannot import it, because
// validate imports this package.
func TestMain(m *testing.M) {
	store.SetValidate(validate.Object)
	os.Exit(m.Run())
}
