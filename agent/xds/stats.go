package xds

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/histogram"
)

// Stats has the counters of a server since its creation.
type Stats struct {
	Streams        int    // number of streams that are open now
	StreamsTotal   uint64 // streams that were opened since the server's creation
	RefusedStreams uint64 // streams refused because of MaxStreams or ConnectsPerSecond
	StuckClients   uint64 // clients disconnected because they did not read
	// UnansweredResponses counts responses that were not answered in time. Envoy acknowledges
	// clusters only once they are warm.
	UnansweredResponses uint64
	Panics              uint64 // recovered panics, each of which ended one stream
	Types               map[string]TypeStats
	// ConvergenceTime is a histogram of the time between the publication of a snapshot and the ACK
	// of each response with its resources.
	ConvergenceTime histogram.Counts
}

// TypeStats has the counters of one type.
type TypeStats struct {
	Pushes    uint64 // number of responses sent
	Resources uint64 // number of resources in all responses
	Removed   uint64 // number of removals in all responses
	Bytes     uint64
	Refusals  uint64 // number of NACKs
}

// newConvergence returns a histogram whose buckets range from the response time of a local Envoy to
// that of one that hangs.
func newConvergence() *histogram.Histogram {
	return histogram.New(time.Millisecond, 5*time.Millisecond, 10*time.Millisecond,
		50*time.Millisecond, 100*time.Millisecond,
		500*time.Millisecond, time.Second, 3*time.Second, 10*time.Second, 30*time.Second)
}

// maxCountedTypes bounds the number of types with counters of their own, because clients can send
// any type URL.
const maxCountedTypes = 64

type counters struct {
	streams, refusedStreams, stuck, unanswered, panics atomic.Uint64

	convergence *histogram.Histogram

	mu    sync.Mutex
	types map[string]TypeStats
}

// change calls with to update the counters of a type. The caller must hold mu.
func (c *counters) change(typeURL string, with func(*TypeStats)) {
	if c.types == nil {
		c.types = map[string]TypeStats{}
	}
	if _, ok := c.types[typeURL]; !ok && len(c.types) >= maxCountedTypes {
		typeURL = "other"
	}
	stats := c.types[typeURL]
	with(&stats)
	c.types[typeURL] = stats
}

func (c *counters) pushed(r *response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change(r.typeURL, func(t *TypeStats) {
		t.Pushes++
		t.Resources += uint64(len(r.resources))
		t.Removed += uint64(len(r.removed))
		t.Bytes += uint64(r.body.size)
	})
}

func (c *counters) accepted(r *response, change bool) {
	if !change {
		// The client connected after the publication, so the time since then does not measure how
		// fast a change reaches clients.
		return
	}
	c.convergence.Observe(time.Since(r.published))
}

func (c *counters) refused(typeURL string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change(typeURL, func(t *TypeStats) { t.Refusals++ })
}

// Stats returns a copy of the server's counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	open := len(s.streams)
	s.mu.Unlock()
	c := &s.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Streams: open, StreamsTotal: c.streams.Load(), RefusedStreams: c.refusedStreams.Load(),
		StuckClients:        c.stuck.Load(),
		UnansweredResponses: c.unanswered.Load(), Panics: c.panics.Load(), Types: maps.Clone(c.types),
		ConvergenceTime: c.convergence.Counts(),
	}
}
