package watch

import "time"

// quietTime decides when a burst of changes is over: when nothing more happened for the debounce, or when the first of
// them is as old as the longest delay. Both are asked anew at each change, since they may be reloaded.
type quietTime struct {
	debounce, maxDelay func() time.Duration
	first              time.Time // of the burst; zero: there is none
}

// touch counts a change at now, and tells how long to wait from now.
func (q *quietTime) touch(now time.Time) time.Duration {
	if q.first.IsZero() {
		q.first = now
	}
	return max(0, min(q.debounce(), q.first.Add(q.maxDelay()).Sub(now)))
}

// over ends the burst.
func (q *quietTime) over() { q.first = time.Time{} }
