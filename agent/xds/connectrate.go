package xds

import (
	"context"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/admission"
)

// connectRate limits how many streams begin per second, so that a fleet that reconnects is served
// gradually.
type connectRate struct {
	perSecond int // maximum number of new streams per second; 0: no limit

	mu   sync.Mutex
	next time.Time // earliest time at which the next stream may begin
}

// connectRates limits the rate of new streams separately for each client address, so that a single
// address cannot use up the limit for all clients.
type connectRates struct {
	perSecond int // maximum number of new streams per second for each address; 0: no limit

	mu    sync.Mutex
	rates map[admission.ClientKey]*connectRate
	swept time.Time // when idle rates were last removed
}

// maxRates bounds the number of addresses whose rates are stored. While it is reached, streams from
// other addresses are not limited by address.
const maxRates = 4096

// of returns the rate of a client's address. There is no limit for clients that are not connected
// through LimitConnections.
func (c *connectRates) of(client Peer) *connectRate {
	if c.perSecond <= 0 || client.connection == nil {
		return &connectRate{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := client.connection.Key
	if known := c.rates[key]; known != nil {
		return known
	}
	if now := time.Now(); len(c.rates) >= maxRates && now.Sub(c.swept) >= longestWait {
		c.swept = now
		past := now.Add(-longestWait)
		maps.DeleteFunc(c.rates, func(_ admission.ClientKey, of *connectRate) bool {
			return of.idle(past)
		})
	}
	made := &connectRate{perSecond: c.perSecond}
	if len(c.rates) < maxRates {
		c.rates[key] = made
	}
	return made
}

// idle reports whether, since the given time, no stream has begun or waited to begin.
func (a *connectRate) idle(since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.next.Before(since)
}

// longestWait bounds the time for which a new stream waits to begin. A stream that would wait
// longer is refused, and Envoy retries after its back-off.
const longestWait = time.Second

// wait blocks until a new stream may begin. The error is a gRPC status.
func (a *connectRate) wait(ctx context.Context) error {
	if a.perSecond <= 0 {
		return nil
	}
	now := time.Now()
	a.mu.Lock()
	at := a.next
	if earliest := now.Add(-longestWait); at.Before(earliest) {
		at = earliest // after an idle time, up to perSecond streams may begin simultaneously
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
