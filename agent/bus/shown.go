package bus

import (
	"context"
	"sync"
	"time"
)

// shown caches a value for one writer and many readers. Readers may request a refresh and wait for
// it briefly; readers that arrive during a refresh share it.
type shown[T any] struct {
	age      time.Duration // maximum age of a value that needs no refresh
	patience time.Duration // how long readers wait before they use the old value
	refresh  chan struct{} // capacity 1; an element requests a refresh from the writer

	mu      sync.Mutex
	value   T
	at      time.Time
	waiting time.Time     // start of the current wait; zero: no reader waits
	done    chan struct{} // closed at the next set
}

func newShown[T any](age, patience time.Duration) *shown[T] {
	return &shown[T]{age: age, patience: patience, refresh: make(chan struct{}, 1),
		done: make(chan struct{})}
}

// set stores a new value and wakes the readers. Only the writer calls it.
func (s *shown[T]) set(value T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.at, s.waiting = value, time.Now(), time.Time{}
	close(s.done)
	s.done = make(chan struct{})
}

// get returns the value, refreshed if that completes in time.
func (s *shown[T]) get(ctx context.Context) T {
	s.mu.Lock()
	if !s.at.IsZero() && time.Since(s.at) < s.age {
		defer s.mu.Unlock()
		return s.value
	}
	if s.waiting.IsZero() {
		s.waiting = time.Now()
	}
	left, done := s.patience-time.Since(s.waiting), s.done
	s.mu.Unlock()
	select {
	case s.refresh <- struct{}{}:
	default: // already requested
	}
	if left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}
