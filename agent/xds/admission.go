package xds

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// admission spreads out the streams that begin: a fleet that reconnects at once is served one after
// another.
type admission struct {
	perSecond int // 0: no bound

	mu   sync.Mutex
	next time.Time // when the next stream may begin
}

// longestWait is how long a stream waits for its turn. Envoy's back-off takes over after that.
const longestWait = time.Second

// wait returns when the stream may begin, or why it may not (a gRPC status).
func (a *admission) wait(ctx context.Context) error {
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
