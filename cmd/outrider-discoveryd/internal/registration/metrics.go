package registration

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counters hold the values of the server's metrics.
type counters struct {
	created, takeovers, disconnected, refused atomic.Uint64
	removedDisconnected, removedLost          atomic.Uint64
	failing                                   atomic.Bool // the store cannot be used
}

func (c *counters) removed(reason string) *atomic.Uint64 {
	if reason == reasonServerLost {
		return &c.removedLost
	}
	return &c.removedDisconnected
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("outrider_registration_"+name, help, labels, nil)
}

var (
	entriesDesc   = desc("entries", "Registered WorkloadEntries of all servers.", "state")
	ownDesc       = desc("workloads", "Workloads that have a stream at this server.")
	failingDesc   = desc("store_failing", "1 while the store cannot be used for more than 5 s.")
	createdDesc   = desc("created_total", "WorkloadEntries created since the start.")
	takeoversDesc = desc("takeovers_total",
		"WorkloadEntries taken over from other servers, or connected again, since the start.")
	disconnectedDesc = desc("disconnected_total", "Workloads disconnected since the start.")
	refusedDesc      = desc("refused_total", "Registrations refused since the start.")
	removedDesc      = desc("removed_total", "WorkloadEntries removed since the start.", "reason")
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, out) }

// Collect implements prometheus.Collector.
func (s *Server) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	count := func(desc *prometheus.Desc, value *atomic.Uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value.Load()),
			labels...)
	}
	s.mu.Lock()
	own := 0
	for _, h := range s.hosts {
		if h.live(s.ending) {
			own++
		}
	}
	for _, state := range []string{"connected", "disconnected"} {
		gauge(entriesDesc, float64(s.states[state]), state)
	}
	s.mu.Unlock()
	gauge(ownDesc, float64(own))
	failing := 0.0
	if s.counters.failing.Load() {
		failing = 1
	}
	gauge(failingDesc, failing)
	count(createdDesc, &s.counters.created)
	count(takeoversDesc, &s.counters.takeovers)
	count(disconnectedDesc, &s.counters.disconnected)
	count(refusedDesc, &s.counters.refused)
	count(removedDesc, &s.counters.removedDisconnected, reasonDisconnected)
	count(removedDesc, &s.counters.removedLost, reasonServerLost)
}
