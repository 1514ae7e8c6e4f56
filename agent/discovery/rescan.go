package discovery

import (
	"context"
	"time"

	"outrider.org/outrider/agent/discovery/store"
)

// Rescan looks through all files again, without waiting for their watch, and returns once Problems
// are those of what it found. Its error is ctx's.
func (s *Server) Rescan(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case s.rescan <- done:
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
	case <-s.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// scan does what Rescan asks for, for all who ask, and returns how long it took. Only Run may call
// it.
func (s *Server) scan(first chan struct{}) time.Duration {
	begun := time.Now()
	all := append(s.waiting(), first)
	s.remesh(nil)
	s.read((*store.Store).Load, s.certificateFiles())
	for _, done := range all {
		close(done)
	}
	return time.Since(begun)
}

// waiting takes all further requests for what is about to be read. Only Run may call it.
func (s *Server) waiting() []chan struct{} {
	var all []chan struct{}
	for {
		select {
		case done := <-s.rescan:
			all = append(all, done)
		default:
			return all
		}
	}
}
