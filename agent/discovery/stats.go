package discovery

import (
	"maps"
	"time"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/histogram"
)

// Stats are the contents and counters of a server.
type Stats struct {
	Services int                 // hosts that have a service
	Objects  map[object.Kind]int // in force, by kind
	Views    int                 // kinds of proxies served
	Problems int
	Debounce histogram.Counts // from the first event of a change until reading starts
	Push     histogram.Counts // reading, translating and publishing of a change
}

// newDurations returns a histogram with the bounds of istiod's pilot_debounce_time and some finer
// ones.
func newDurations() *histogram.Histogram {
	return histogram.New(time.Millisecond, 10*time.Millisecond, 100*time.Millisecond,
		500*time.Millisecond, time.Second, 3*time.Second,
		5*time.Second, 10*time.Second, 20*time.Second, 30*time.Second)
}

// Stats returns the contents and counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Services: s.config.world.Hosts(), Objects: maps.Clone(s.config.objects),
		Views: len(s.views), Problems: len(s.problems),
		Debounce: s.debounced.Read(), Push: s.pushed.Read()}
}
