package discovery

import (
	"maps"
	"time"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/histogram"
)

// Stats has the counters of a server and the size of what it serves.
type Stats struct {
	Services int                 // number of hosts that have a service
	Objects  map[object.Kind]int // objects in force, by kind
	Views    int                 // number of kinds of proxies that are served
	Problems int
	Debounce histogram.Counts // time from the first event of a change until reading begins
	Push     histogram.Counts // time of reading, translating and publishing a change
}

// newDurations returns a histogram with the bounds of istiod's pilot_debounce_time and finer ones.
func newDurations() *histogram.Histogram {
	return histogram.New(time.Millisecond, 10*time.Millisecond, 100*time.Millisecond,
		500*time.Millisecond, time.Second, 3*time.Second,
		5*time.Second, 10*time.Second, 20*time.Second, 30*time.Second)
}

// Stats returns the counters of the server and the size of what it serves.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Services: s.config.world.ServiceHostCount(), Objects: maps.Clone(s.config.objects),
		Views: len(s.views), Problems: len(s.problems),
		Debounce: s.debounced.Counts(), Push: s.pushed.Counts()}
}

// MeshInventory returns all services, and the workloads that may not receive requests. It holds the
// lock only while it copies pointers (some 100 µs with 4,096 services).
func (s *Server) MeshInventory() model.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config.world.Inventory()
}
