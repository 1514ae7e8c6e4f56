package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// collector is how eager Go's collector is. The agent is busy for a tenth of a second when it starts and then sleeps for days, so it
// collects earlier than Go does by default, and once it has settled it gives back what only the start needed. Measured with 100
// services: 16 MB anonymous without, 10 MB with both.
//
// At the start itself the collector would take the processor that Envoy starts on, so it rests until the start is decided: with some hundred
// services nothing is collected before. Where a first collection is called for, it is to bound what is used from then on.
type collector struct {
	mu      sync.Mutex
	settled bool
}

const (
	collectFirst    = 400 // percent of new memory, of what is in use, that starts a collection. The first one is at 16 MB
	collectStarting = 100 // after that, or a moment after the start is decided
	collectAt       = 40  // once the agent has settled
	settleAfter     = 2 * time.Second
)

// rest is for the start.
func (c *collector) rest() {
	debug.SetGCPercent(collectFirst)
	type sentinel struct{ _ [64]byte } // not so small that it shares its block with what lives on
	runtime.AddCleanup(new(sentinel), func(c *collector) { c.set(collectStarting, false) }, c)
}

// settle gives memory back a moment after the start. Buffers in pools survive one collection: hence two.
func (c *collector) settle(ctx context.Context) {
	select {
	case <-time.After(settleAfter):
		c.set(collectAt, true)
		debug.FreeOSMemory()
		debug.FreeOSMemory()
	case <-ctx.Done():
	}
}

// set changes nothing any more once the agent has settled.
func (c *collector) set(percent int, settled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return
	}
	c.settled = settled
	debug.SetGCPercent(percent)
}
