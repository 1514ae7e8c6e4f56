package ca

import "github.com/prometheus/client_golang/prometheus"

var (
	issuedDesc = prometheus.NewDesc("outrider_ca_issued_total",
		"Certificates issued since the start.", nil, nil)
	refusedDesc = prometheus.NewDesc("outrider_ca_refused_total",
		"Requests for certificates refused since the start.", nil, nil)
	notAfterDesc = prometheus.NewDesc("outrider_ca_not_after_timestamp_seconds",
		"When the first certificate of the chain that signs expires.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, out) }

// Collect implements prometheus.Collector.
func (s *Server) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(issuedDesc, prometheus.CounterValue,
		float64(s.issued.Load()))
	out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue,
		float64(s.refused.Load()))
	out <- prometheus.MustNewConstMetric(notAfterDesc, prometheus.GaugeValue,
		float64(s.current.Load().notAfter.Unix()))
}
