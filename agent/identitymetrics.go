package agent

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// identityMetrics exports the expiry time of each secret, its renewals and failures.
type identityMetrics struct{ *Agent }

var (
	secretExpiry = prometheus.NewDesc("outrider_secret_expiry_timestamp_seconds",
		"When a secret expires, in seconds since 1970.", []string{"resource", "source"}, nil)
	secretRenewals = prometheus.NewDesc("outrider_secret_renewals_total",
		"How often a secret was replaced by a newer version.", []string{"resource"}, nil)
	secretFailures = prometheus.NewDesc("outrider_secret_failures_total",
		"Failed attempts to obtain a secret.", []string{"resource", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (m identityMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{secretExpiry, secretRenewals, secretFailures} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m identityMetrics) Collect(out chan<- prometheus.Metric) {
	label := func(name string) string { return strings.ToValidUTF8(name, "?") }
	stats := m.identity.Stats()
	for _, s := range m.identities() {
		out <- prometheus.MustNewConstMetric(secretExpiry, prometheus.GaugeValue,
			float64(s.NotAfter.Unix()), label(s.Name), s.Source)
		out <- prometheus.MustNewConstMetric(secretRenewals, prometheus.CounterValue,
			float64(stats.Renewals[s.Name]), label(s.Name))
	}
	for failure, count := range stats.Failures {
		out <- prometheus.MustNewConstMetric(secretFailures, prometheus.CounterValue,
			float64(count), label(failure.Resource), failure.Reason)
	}
}
