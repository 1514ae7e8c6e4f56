// Package backoff computes the pauses between failed attempts.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is a series of pauses that doubles from Min to Max. It belongs to one goroutine.
type Backoff struct {
	Min, Max time.Duration
	Jitter   float64 // maximum random deviation of a pause, as a fraction of it
	failures int
}

// Next counts a failed attempt and returns the pause before the next one.
func (b *Backoff) Next() time.Duration {
	b.failures++
	pause := Exponential(b.Min, b.Max, b.failures)
	return time.Duration(float64(pause) * (1 + b.Jitter*(2*rand.Float64()-1)))
}

// Reset restarts the series at Min. Call it after a successful attempt.
func (b *Backoff) Reset() { b.failures = 0 }

// Wait counts a failed attempt and sleeps for Next. It returns ctx's error if ctx ends first.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Exponential returns the pause after a number of consecutive failures: 0 after none, shortest
// after the first, then twice the previous pause, up to longest.
func Exponential(shortest, longest time.Duration, failures int) time.Duration {
	if failures < 1 {
		return 0
	}
	pause := min(shortest, longest)
	for ; failures > 1 && pause < longest; failures-- {
		pause = min(2*pause, longest)
	}
	return pause
}

// Sleep sleeps for pause. It returns ctx's error if ctx ends first.
func Sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
