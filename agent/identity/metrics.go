package identity

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics exports the expiry time of each secret, its renewals and failures (prometheus.Collector).
type Metrics struct{ Manager *Manager }

var (
	secretExpiry = prometheus.NewDesc("outrider_secret_expiry_timestamp_seconds",
		"When a secret expires, in seconds since 1970.", []string{"resource", "source"}, nil)
	secretRenewals = prometheus.NewDesc("outrider_secret_renewals_total",
		"How often a secret was replaced by a newer version.", []string{"resource"}, nil)
	secretFailures = prometheus.NewDesc("outrider_secret_failures_total",
		"Failed attempts to obtain a secret.", []string{"resource", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (m Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{secretExpiry, secretRenewals, secretFailures} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(out chan<- prometheus.Metric) {
	label := func(name string) string { return strings.ToValidUTF8(name, "?") }
	stats := m.Manager.Stats()
	for _, s := range m.Manager.Secrets() {
		if s.NotAfter.IsZero() {
			continue // the secret is not loaded yet
		}
		out <- prometheus.MustNewConstMetric(secretExpiry, prometheus.GaugeValue,
			float64(s.NotAfter.Unix()), label(s.Name), string(s.Source))
		out <- prometheus.MustNewConstMetric(secretRenewals, prometheus.CounterValue,
			float64(stats.Renewals[s.Name]), label(s.Name))
	}
	for failure, count := range stats.Failures {
		out <- prometheus.MustNewConstMetric(secretFailures, prometheus.CounterValue,
			float64(count), label(failure.Resource), failure.Reason)
	}
}
