package agent

import "testing"

func TestCounted(t *testing.T) {
	for n, want := range map[int]string{0: "", 1: "1 error", 2: "2 errors"} {
		if got := counted(n, "error"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}
