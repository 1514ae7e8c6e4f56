package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errDraining ends the streams of a server that drains. Their clients connect to another server.
var errDraining = status.Error(codes.Unavailable, "this server stops: connect to another one")

// draining holds the state of Server.Drain.
type draining struct {
	within  time.Duration // duration of the drain; set before started is closed
	started chan struct{}
	ended   chan struct{} // closed when no stream is left after started
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

// emptied records that no stream is left.
func (d *draining) emptied() {
	if d.begun() {
		d.end()
	}
}

// Drain refuses new streams, and ends each open stream at a random time within a duration, so that
// clients move to other servers gradually. It returns when no stream is left, or when ctx or the
// duration ends. It may be called once.
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
