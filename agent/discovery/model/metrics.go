package model

import (
	"maps"
	"slices"

	meshapi "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"outrider.org/outrider/agent/discovery/object"
)

// Metrics selects Istio's metrics that a proxy's listeners record, and their labels.
type Metrics struct {
	Overrides map[string]MetricOverride // by name of the metric without its prefix istio_
	// last Telemetry that configures metrics; nil: defaultProviders
	Object *object.Object
	Field  string // path of the entry in the Telemetry's spec: metrics[N]
}

// MetricOverride changes one of Istio's metrics.
type MetricOverride struct {
	Disabled bool
	Tags     map[string]string // label to its CEL expression; "": the label is removed
}

// metricNames has Istio's name of each metric in a Telemetry without the prefix istio_.
var metricNames = map[telemetry.MetricSelector_IstioMetric]string{
	telemetry.MetricSelector_REQUEST_COUNT:          "requests_total",
	telemetry.MetricSelector_REQUEST_DURATION:       "request_duration_milliseconds",
	telemetry.MetricSelector_REQUEST_SIZE:           "request_bytes",
	telemetry.MetricSelector_RESPONSE_SIZE:          "response_bytes",
	telemetry.MetricSelector_TCP_OPENED_CONNECTIONS: "tcp_connections_opened_total",
	telemetry.MetricSelector_TCP_CLOSED_CONNECTIONS: "tcp_connections_closed_total",
	telemetry.MetricSelector_TCP_SENT_BYTES:         "tcp_sent_bytes_total",
	telemetry.MetricSelector_TCP_RECEIVED_BYTES:     "tcp_received_bytes_total",
	telemetry.MetricSelector_GRPC_REQUEST_MESSAGES:  "request_messages_total",
	telemetry.MetricSelector_GRPC_RESPONSE_MESSAGES: "response_messages_total",
}

// Metrics returns the metrics of a proxy's listeners; nil if there are none. It merges the entries
// of Telemetries as Istio does. An entry without providers applies to the providers of the previous
// entry, and the first entry to defaultProviders. Metrics are recorded only by the providers of the
// last entry that has providers. A later override of a metric has precedence. Of several providers
// of type prometheus, the first one by name is used.
func (w *Mesh) Metrics(node Node, mode TelemetryMode) *Metrics {
	inScope := w.mesh.DefaultProviders.GetMetrics()
	parents := inScope
	found, disabled := map[string]*Metrics{}, map[string]bool{}
	type entry struct {
		*telemetry.Metrics
		object *object.Object
		field  string
	}
	var entries []entry
	for _, o := range w.Telemetries(node) {
		for i, m := range o.Spec.(*telemetry.Telemetry).Metrics {
			entries = append(entries, entry{m, o, field("metrics", i)})
			if names := providerNames(m.GetProviders()); len(names) > 0 {
				inScope = names
			}
		}
	}
	if len(entries) == 0 {
		for _, name := range inScope {
			found[name] = &Metrics{}
		}
	}
	for _, e := range entries {
		if names := providerNames(e.GetProviders()); len(names) > 0 {
			parents = names
		}
		for _, name := range parents {
			if !slices.Contains(inScope, name) {
				continue
			}
			if found[name] == nil {
				found[name] = &Metrics{Overrides: map[string]MetricOverride{}}
			}
			found[name].Object, found[name].Field = e.object, e.field
			for _, o := range e.GetOverrides() {
				if isFor(o.GetMatch().GetMode(), mode) {
					disabled[name] = found[name].override(o)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		_, ok := w.mesh.FindProvider(name).GetProvider().(*meshapi.
			MeshConfig_ExtensionProvider_Prometheus)
		if ok && !disabled[name] {
			return found[name]
		}
	}
	return nil
}

// override applies an override, and reports whether it disables all metrics. As in Istio, a later
// override of one metric enables the others again.
func (m *Metrics) override(o *telemetry.MetricsOverrides) (disabled bool) {
	var names []string
	switch match := o.GetMatch().GetMetricMatch().(type) {
	case *telemetry.MetricSelector_CustomMetric:
		names = []string{match.CustomMetric}
	case *telemetry.MetricSelector_Metric:
		if name := metricNames[match.Metric]; name != "" {
			names = []string{name}
		}
	}
	if names == nil { // all metrics
		if o.GetDisabled().GetValue() {
			return true
		}
		names = slices.Collect(maps.Values(metricNames))
	}
	for _, name := range names {
		override := m.Overrides[name]
		if o.GetDisabled() != nil {
			override.Disabled = o.Disabled.Value
		}
		override.Tags = maps.Clone(override.Tags)
		if override.Tags == nil {
			override.Tags = map[string]string{}
		}
		for tag, change := range o.GetTagOverrides() {
			override.Tags[tag] = ""
			if change.GetOperation() == telemetry.MetricsOverrides_TagOverride_UPSERT {
				override.Tags[tag] = change.GetValue()
			}
		}
		m.Overrides[name] = override
	}
	return false
}
