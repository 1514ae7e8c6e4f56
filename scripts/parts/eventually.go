package parts

import (
	"testing"
	"time"
)

// pollPause is the pause between two evaluations of a condition.
const pollPause = 5 * time.Millisecond

// Eventually polls until holds returns true, and fails the test if that takes longer than limit.
func Eventually(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	if !Poll(limit, holds) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// EventuallySees is Eventually for a condition that returns what it sees; a failure prints the last
// value.
func EventuallySees(t testing.TB, limit time.Duration, what string,
	holds func() (bool, string)) {
	t.Helper()
	var seen string
	if !Poll(limit, func() (ok bool) { ok, seen = holds(); return ok }) {
		t.Fatalf("not within %v: %s: %s", limit, what, seen)
	}
}

// Poll polls until holds returns true, for at most limit, and reports whether it did.
func Poll(limit time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(pollPause) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// RepeatFor calls look once per period for a duration. It is for checks that an event does not
// happen or that a state does not change.
func RepeatFor(duration, period time.Duration, look func()) {
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(period) {
		look()
	}
}
