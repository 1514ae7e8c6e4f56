package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/admission"
)

// ConnectionMetrics counts the connections that the agent's HTTP servers refused, or closed in
// favour of others (evicted), by the name of the server (prometheus.Collector).
type ConnectionMetrics map[string]interface{ ConnectionStats() admission.Stats }

var (
	connectionsEvicted = prometheus.NewDesc("outrider_connections_evicted_total",
		"Idle connections that were closed for others, by the address they came to.",
		[]string{"address"}, nil)
	connectionsRefused = prometheus.NewDesc("outrider_connections_refused_total",
		"Connections that were refused, as all of their user or host were busy.",
		[]string{"address"}, nil)
)

// Describe implements prometheus.Collector.
func (m ConnectionMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- connectionsEvicted
	out <- connectionsRefused
}

// Collect implements prometheus.Collector.
func (m ConnectionMetrics) Collect(out chan<- prometheus.Metric) {
	for address, server := range m {
		stats := server.ConnectionStats()
		out <- prometheus.MustNewConstMetric(connectionsEvicted, prometheus.CounterValue,
			float64(stats.Evicted), address)
		out <- prometheus.MustNewConstMetric(connectionsRefused, prometheus.CounterValue,
			float64(stats.Refused), address)
	}
}
