package discovery

import (
	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/discovery/object"
)

// Metrics implements prometheus.Collector for a Server. Metrics that istiod exports, too, have
// istiod's names, so that its dashboards work.
type Metrics struct{ Server *Server }

var (
	debounceDesc = prometheus.NewDesc("pilot_debounce_time",
		"Seconds from the first event of a change until it was read.", nil, nil)
	pushDesc = prometheus.NewDesc("outrider_push_seconds",
		"Seconds that reading, translating and publishing a change took.", nil, nil)
	servicesDesc = prometheus.NewDesc("pilot_services", "Hosts that have a service.", nil, nil)
	viewsDesc    = prometheus.NewDesc("outrider_discovery_views", "Kinds of proxies that are served.",
		nil, nil)
	objectDescs = map[object.Kind]*prometheus.Desc{
		object.VirtualService:  objectCount("pilot_virt_services", object.VirtualService),
		object.DestinationRule: objectCount("pilot_destrules", object.DestinationRule),
		object.Gateway:         objectCount("pilot_gateways", object.Gateway)}
)

func objectCount(name string, kind object.Kind) *prometheus.Desc {
	return prometheus.NewDesc(name, "Objects of kind "+string(kind)+" that count.", nil, nil)
}

// Describe implements prometheus.Collector.
func (m Metrics) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect implements prometheus.Collector.
func (m Metrics) Collect(out chan<- prometheus.Metric) {
	now := m.Server.Stats()
	gauge := func(desc *prometheus.Desc, value int) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value))
	}
	out <- now.Debounce.Metric(debounceDesc)
	out <- now.Push.Metric(pushDesc)
	gauge(servicesDesc, now.Services)
	gauge(viewsDesc, now.Views)
	for kind, desc := range objectDescs {
		gauge(desc, now.Objects[kind])
	}
}
