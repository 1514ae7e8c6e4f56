package parts

import (
	"testing"
	"time"
)

// pollPause is the pause between two calls of a condition.
const pollPause = 5 * time.Millisecond

// Eventually polls until holds returns true, and fails the test if that takes longer than limit.
func Eventually(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	if !Poll(limit, holds) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// EventuallySees is like Eventually for a condition that also returns what it observed. A failure
// prints the last observation.
func EventuallySees(t testing.TB, limit time.Duration, what string,
	holds func() (bool, string)) {
	t.Helper()
	var seen string
	if !Poll(limit, func() (ok bool) { ok, seen = holds(); return ok }) {
		t.Fatalf("not within %v: %s: %s", limit, what, seen)
	}
}

// Poll polls until holds returns true, for at most limit, and reports whether it has returned true.
func Poll(limit time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(pollPause) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// RepeatFor calls look periodically for a duration. Use it to check that an event does not happen
// or that a state does not change.
func RepeatFor(duration, period time.Duration, look func()) {
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(period) {
		look()
	}
}
