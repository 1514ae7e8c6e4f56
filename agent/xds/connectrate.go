package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connectRate limits the rate of new streams, so that a fleet that reconnects is served in turn.
type connectRate struct {
	perSecond int // 0: no bound

	mu   sync.Mutex
	next time.Time // when the next stream may begin
}

// longestWait bounds the wait of a new stream. A stream that would wait longer is refused, and
// Envoy tries again after its back-off.
const longestWait = time.Second

// wait blocks until the stream may begin. The error is a gRPC status.
func (a *connectRate) wait(ctx context.Context) error {
	if a.perSecond <= 0 {
		return nil
	}
	now := time.Now()
	a.mu.Lock()
	at := a.next
	if earliest := now.Add(-longestWait); at.Before(earliest) {
		at = earliest // a second's worth may begin together
	}
	pause := at.Sub(now)
	if pause <= longestWait {
		a.next = at.Add(time.Second / time.Duration(a.perSecond))
	}
	a.mu.Unlock()
	if pause > longestWait {
		return status.Errorf(codes.ResourceExhausted,
			"more than %d streams a second begin: try again", a.perSecond)
	}
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
