package backend

import (
	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/condition"
)

// conditionMetrics exports a sample for each condition that stands (prometheus.Collector).
type conditionMetrics struct{ board *condition.Board }

var conditionStands = prometheus.NewDesc("outrider_condition",
	"1 for each degraded state that stands.", []string{"code", "severity"}, nil)

// Describe implements prometheus.Collector.
func (m conditionMetrics) Describe(out chan<- *prometheus.Desc) { out <- conditionStands }

// Collect implements prometheus.Collector.
func (m conditionMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.board.Conditions() {
		out <- prometheus.MustNewConstMetric(conditionStands, prometheus.GaugeValue, 1, c.Code,
			string(c.Severity))
	}
}
