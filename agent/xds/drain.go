package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errDraining is the error with which a server that drains ends its streams. Their clients then
// connect to another server.
var errDraining = status.Error(codes.Unavailable, "this server stops: connect to another one")

// draining holds the state of Server.Drain.
type draining struct {
	within  time.Duration // time within which all streams end; set before started is closed
	started chan struct{}
	ended   chan struct{} // closed when no stream is left after the start of the drain
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

// emptied is called when no stream is left. It ends a drain that has started.
func (d *draining) emptied() {
	if d.begun() {
		d.end()
	}
}

// Drain refuses new streams, and ends each open stream at a random time within the given duration,
// so that clients move to other servers gradually. It returns when no stream is left, when the
// duration is over, or when ctx ends. It may be called once.
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
