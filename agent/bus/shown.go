package bus

import (
	"context"
	"sync"
	"time"
)

// shown is a value that one owner keeps fresh and many read. A reader may ask for it to be refreshed and wait a little; readers
// that come while the owner is at it wait together, so that many of them are not slower than one.
type shown[T any] struct {
	age      time.Duration // a value so old is fresh enough
	patience time.Duration // how long a refresh is waited for, before the old value does
	asked    chan struct{} // holds one: somebody waits for a refresh

	mu      sync.Mutex
	value   T
	at      time.Time
	waiting time.Time     // since when somebody waits; zero: nobody
	done    chan struct{} // closed at the next set
}

func newShown[T any](age, patience time.Duration) *shown[T] {
	return &shown[T]{age: age, patience: patience, asked: make(chan struct{}, 1), done: make(chan struct{})}
}

// set is the owner's: the value as of now.
func (s *shown[T]) set(value T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.at, s.waiting = value, time.Now(), time.Time{}
	close(s.done)
	s.done = make(chan struct{})
}

// get is the value, fresh if that is to be had in time.
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
	case s.asked <- struct{}{}:
	default: // it is asked for already
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
