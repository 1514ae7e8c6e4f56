package xds

import (
	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/resource"
)

// Metrics implements prometheus.Collector for a Server. Metrics that istiod exports, too, have the
// same names, so that dashboards for istiod work.
type Metrics struct{ Server *Server }

// shortTypes maps type URLs to the names that istiod uses in metrics.
var shortTypes = map[string]string{resource.ClusterType: "cds", resource.EndpointType: "eds",
	resource.ListenerType: "lds", resource.RouteType: "rds",
	resource.SecretType: "sds"}

// Describe sends no descriptors, because the set of metrics depends on the types that proxies
// request.
func (m Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect sends the current values of the server's counters.
func (m Metrics) Collect(out chan<- prometheus.Metric) {
	number := func(kind prometheus.ValueType, name, help string, value float64,
		labels prometheus.Labels) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, labels),
			kind, value)
	}
	streams := m.Server.Stats()
	number(prometheus.GaugeValue, "pilot_xds", "Streams of proxies that are open.",
		float64(streams.Streams), nil)
	var rejects uint64
	for typeURL, t := range streams.Types {
		name, known := shortTypes[typeURL]
		if !known {
			name = typeURL
		}
		labels := prometheus.Labels{"type": name}
		number(prometheus.CounterValue, "pilot_xds_pushes", "Responses sent, by type.",
			float64(t.Pushes), labels)
		number(prometheus.CounterValue, "outrider_xds_sent_resources_total", "Resources in them.",
			float64(t.Resources), labels)
		number(prometheus.CounterValue, "outrider_xds_sent_bytes_total", "Bytes of them.",
			float64(t.Bytes), labels)
		if known {
			number(prometheus.CounterValue, "pilot_xds_"+name+"_reject",
				"Responses that a proxy refused in part or whole.", float64(t.Refusals), nil)
		}
		rejects += t.Refusals
	}
	number(prometheus.CounterValue, "pilot_total_xds_rejects",
		"Responses of any type that a proxy refused in part or whole.", float64(rejects), nil)
	out <- streams.ConvergenceTime.Metric(prometheus.NewDesc("pilot_proxy_convergence_time",
		"Seconds from a change's publication to its acceptance by a proxy.", nil, nil))
}
