package discovery

import (
	"context"
	"errors"
	"time"

	"outrider.org/outrider/agent/discovery/store"
)

// Rescan reads all files again, without waiting for file events. It returns once Problems includes
// the result or Run has ended. It returns an error only if ctx ends.
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

// inRun calls a function in the goroutine of Run, which owns the store. It returns an error if ctx
// or Run ends first.
func (s *Server) inRun(ctx context.Context, call func()) error {
	done := make(chan struct{})
	select {
	case s.calls <- func() { call(); close(done) }:
		<-done
		return nil
	case <-s.ended:
		return errors.New("the discovery server has ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ping returns nil once the goroutine of Run responds.
func (s *Server) Ping(ctx context.Context) error { return s.inRun(ctx, func() {}) }

// scan reads all files once for all pending calls of Rescan, and returns how long that took. Only
// Run may call it.
func (s *Server) scan(first chan struct{}) time.Duration {
	begun := time.Now()
	all := append(s.waiting(), first)
	s.remesh(nil)
	s.certificates.refresh(inspectWait)
	s.read((*store.Store).Load, s.certificates.takeChanged())
	for _, done := range all {
		close(done)
	}
	return time.Since(begun)
}

// waiting returns the channels of all pending calls of Rescan. Only Run may call it.
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
