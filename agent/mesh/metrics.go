package mesh

import (
	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/histogram"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// Metrics implements prometheus.Collector for the embedded discovery server. Metrics that istiod
// has, too, use its names, so that its dashboards work.
type Metrics struct {
	Discovery *discovery.Server
	XDS       *xds.Server
}

// shortTypes maps type URLs to istiod's names.
var shortTypes = map[string]string{resource.ClusterType: "cds", resource.EndpointType: "eds",
	resource.ListenerType: "lds", resource.RouteType: "rds",
	resource.SecretType: "sds"}

// objectMetrics maps object kinds to the metrics that count them.
var objectMetrics = map[object.Kind]string{object.VirtualService: "pilot_virt_services",
	object.DestinationRule: "pilot_destrules", object.Gateway: "pilot_gateways"}

// Describe sends nothing: the metrics depend on the types that proxies request.
func (m Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect reads the counters of the parts.
func (m Metrics) Collect(out chan<- prometheus.Metric) {
	number := func(kind prometheus.ValueType, name, help string, value float64,
		labels prometheus.Labels) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, labels),
			kind, value)
	}
	durations := func(name, help string, counts histogram.Counts) {
		buckets := make(map[float64]uint64, len(counts.Bounds))
		var below uint64
		for i, bound := range counts.Bounds {
			below += counts.Counts[i]
			buckets[bound.Seconds()] = below
		}
		out <- prometheus.MustNewConstHistogram(prometheus.NewDesc(name, help, nil, nil),
			counts.Count, counts.Sum.Seconds(), buckets)
	}
	streams, mesh := m.XDS.Stats(), m.Discovery.Stats()
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
	durations("pilot_proxy_convergence_time",
		"Seconds from a change's publication to its acceptance by a proxy.", streams.Convergence)
	durations("pilot_debounce_time", "Seconds from the first event of a change until it was read.",
		mesh.Debounce)
	durations("outrider_push_seconds",
		"Seconds that reading, translating and publishing a change took.", mesh.Push)
	number(prometheus.GaugeValue, "pilot_services", "Hosts that have a service.",
		float64(mesh.Services), nil)
	for kind, name := range objectMetrics {
		number(prometheus.GaugeValue, name, "Objects of kind "+string(kind)+" that count.",
			float64(mesh.Objects[kind]), nil)
	}
	number(prometheus.GaugeValue, "outrider_discovery_views", "Kinds of proxies that are served.",
		float64(mesh.Views), nil)
}
