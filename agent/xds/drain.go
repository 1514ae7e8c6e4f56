package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errDraining ends the streams of a server that stops. Clients connect to another one.
var errDraining = status.Error(codes.Unavailable, "this server stops: connect to another one")

// draining is the state of Drain.
type draining struct {
	within  time.Duration // set before started is closed
	started chan struct{}
	ended   chan struct{} // closed when there is no stream after started
	end     func()
	start   func()
}

func newDraining() draining {
	d := draining{started: make(chan struct{}), ended: make(chan struct{})}
	d.start = sync.OnceFunc(func() { close(d.started) })
	d.end = sync.OnceFunc(func() { close(d.ended) })
	return d
}

func (d *draining) begun() bool {
	select {
	case <-d.started:
		return true
	default:
		return false
	}
}

// emptied notes that there is no stream.
func (d *draining) emptied() {
	if d.begun() {
		d.end()
	}
}

// Drain refuses new streams, and ends each of the others at a random time within a duration, so
// that clients move to other servers one after the other. It returns when no stream is left, or
// when ctx or the duration ends. It may be called once.
func (s *Server) Drain(ctx context.Context, within time.Duration) {
	s.mu.Lock()
	s.drain.within = max(within, 1)
	s.drain.start()
	if len(s.streams) == 0 {
		s.drain.end()
	}
	s.mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-s.drain.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}
