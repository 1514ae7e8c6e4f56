package parts

import (
	"testing"
	"time"
)

// Limits of the pause between two calls of a condition. The pause is twice as long as the call, so
// that a condition that runs programs leaves most of the processor time to the tested programs.
const (
	leastPause = 5 * time.Millisecond
	mostPause  = 500 * time.Millisecond
)

// Eventually polls until holds returns true, and fails the test if that takes longer than limit.
func Eventually(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	if !Poll(limit, holds) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// EventuallyWithObservation is like Eventually for a condition that also returns what it observed.
// A failure prints the last observation.
func EventuallyWithObservation(t testing.TB, limit time.Duration, what string,
	holds func() (bool, string)) {
	t.Helper()
	var seen string
	if !Poll(limit, func() (ok bool) { ok, seen = holds(); return ok }) {
		t.Fatalf("not within %v: %s: %s", limit, what, seen)
	}
}

// Poll polls until holds returns true, for at most limit, and reports whether it has returned true.
func Poll(limit time.Duration, holds func() bool) bool {
	deadline := time.Now().Add(limit)
	for {
		start := time.Now()
		if holds() {
			return true
		}
		end := time.Now()
		if end.After(deadline) {
			return false
		}
		time.Sleep(min(max(2*end.Sub(start), leastPause), mostPause))
	}
}

// RepeatFor calls look periodically for a duration. Use it to check that an event does not happen
// or that a state does not change.
func RepeatFor(duration, period time.Duration, look func()) {
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(period) {
		look()
	}
}
