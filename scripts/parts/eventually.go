package parts

import (
	"testing"
	"time"
)

// pollPause is the pause between two looks at a condition.
const pollPause = 5 * time.Millisecond

// Eventually polls until holds returns true, and fails the test if that takes longer than limit.
func Eventually(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	if !Poll(limit, holds) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// EventuallySees is Eventually for a condition that says what it sees; a failure has what it saw
// last.
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

// RepeatFor calls look every period for a duration: it is for events that must not happen, or
// states that must not change.
func RepeatFor(duration, period time.Duration, look func()) {
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(period) {
		look()
	}
}
