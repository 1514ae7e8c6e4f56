package parts

import (
	"testing"
	"time"
)

// Eventually polls until holds returns true, and fails the test if that takes longer than limit.
func Eventually(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
