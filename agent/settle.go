package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// The agent is busy for a tenth of a second when it starts and then sleeps for days, so that memory counts more than the
// collector's time: it collects earlier than Go does by default, and once it has settled it gives back what only the start
// needed. Measured with 100 services: 16 MB anonymous without, 11 MB with both.
//
// At the start itself the collector would take the processor that Envoy starts on. So it rests until there is an Envoy, collects
// once what was needed until then (2 of 4 MB), and is not so eager until the agent has settled. To rest until the end would
// save another 5 ms, and leave 1 MB more for good: what stays is then spread over more pages.
const (
	collectFirst    = 400 // percent of new memory, of what is in use, that starts a collection: before there is an Envoy
	collectStarting = 100 // until the agent has settled
	collectAt       = 40  // from then on
	settleAfter     = 2 * time.Second
)

// tidyFirst is for the moment when Envoy was started: it does not need the second processor yet.
func tidyFirst() {
	runtime.GC()
	debug.SetGCPercent(collectStarting)
}

// settle gives memory back a moment after the start. Buffers in pools survive one collection: hence two.
func settle(ctx context.Context) {
	select {
	case <-time.After(settleAfter):
		debug.SetGCPercent(collectAt)
		debug.FreeOSMemory()
		debug.FreeOSMemory()
	case <-ctx.Done():
	}
}
