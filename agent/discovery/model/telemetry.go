package model

import (
	"maps"
	"slices"
	"strconv"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"outrider.org/outrider/agent/discovery/object"
)

// TelemetryMode is the direction of traffic that an entry of a Telemetry is for.
type TelemetryMode = telemetry.WorkloadMode

// Modes of listeners: outbound listeners and those of gateways are clients, inbound ones are
// servers.
const (
	ClientMode = telemetry.WorkloadMode_CLIENT
	ServerMode = telemetry.WorkloadMode_SERVER
)

// Telemetries returns the Telemetries that apply to a proxy in ascending precedence: the one for
// the root namespace, the one for the proxy's own namespace, then those that select the proxy,
// oldest first.
func (w *Mesh) Telemetries(node Node) []*object.Object {
	namespaces := []string{w.mesh.RootNamespace, node.Namespace}
	if node.Namespace == w.mesh.RootNamespace {
		namespaces = namespaces[:1]
	}
	var found []*object.Object
	for _, namespace := range namespaces {
		if i := slices.IndexFunc(w.telemetries[namespace], isForAll); i >= 0 {
			found = append(found, w.telemetries[namespace][i])
		}
	}
	for _, o := range w.telemetries[node.Namespace] {
		if !isForAll(o) && selects(o, node) {
			found = append(found, o)
		}
	}
	return found
}

// ShadowedTelemetries returns the Telemetries without effect, in the proxy's namespace and the root
// namespace, with the older Telemetry that has precedence over each.
func (w *Mesh) ShadowedTelemetries(node Node) map[*object.Object]*object.Object {
	shadowed := map[*object.Object]*object.Object{}
	for _, namespace := range []string{w.mesh.RootNamespace, node.Namespace} {
		var first *object.Object
		for _, o := range w.telemetries[namespace] {
			switch {
			case !isForAll(o):
			case first == nil:
				first = o
			default:
				shadowed[o] = first
			}
		}
	}
	return shadowed
}

// isForAll reports whether a Telemetry is for all proxies of its namespace.
func isForAll(o *object.Object) bool {
	return len(policyTargets(o)) == 0 && len(o.Spec.(targeted).GetSelector().GetMatchLabels()) == 0
}

// AccessLogging is the access log of a provider.
type AccessLogging struct {
	Provider string
	Disabled bool
	Filter   string         // CEL expression; "": everything is logged
	Object   *object.Object // Telemetry that enables the log; nil: defaultProviders of MeshConfig
	Field    string         // path of the log's entry below spec
}

// AccessLogging returns the access logs of a proxy's listeners, sorted by provider. It merges the
// entries of Telemetries as Istio does. An entry without providers applies to the providers of the
// previous entry, and the first entry to defaultProviders. Providers of a Telemetry replace those
// of Telemetries with lower precedence.
func (w *Mesh) AccessLogging(node Node, mode TelemetryMode) []AccessLogging {
	defaults := w.mesh.DefaultProviders.GetAccessLogging()
	inScope, parents := defaults, defaults
	var objects []*object.Object
	filters := map[string]AccessLogging{}
	for _, o := range w.Telemetries(node) {
		logging := o.Spec.(*telemetry.Telemetry).AccessLogging
		if len(logging) == 0 {
			continue
		}
		objects = append(objects, o)
		var names []string
		for i, entry := range logging {
			if !isFor(entry.GetMatch().GetMode(), mode) {
				continue
			}
			for _, p := range entry.Providers {
				names = append(names, p.GetName())
				filters[p.GetName()] = AccessLogging{Provider: p.GetName(),
					Filter: entry.GetFilter().GetExpression(), Object: o,
					Field: field("accessLogging", i)}
			}
		}
		if len(names) > 0 {
			inScope = names
		}
	}
	found := map[string]AccessLogging{}
	if len(objects) == 0 {
		for _, name := range defaults {
			found[name] = AccessLogging{Provider: name}
		}
	}
	for _, o := range objects {
		for i, entry := range o.Spec.(*telemetry.Telemetry).AccessLogging {
			names := providerNames(entry.GetProviders())
			if len(names) == 0 {
				names = parents
			}
			parents = names
			for _, name := range names {
				if !slices.Contains(inScope, name) || !isFor(entry.GetMatch().GetMode(), mode) {
					continue
				}
				log := filters[name]
				if log.Object == nil || entry.GetDisabled().GetValue() {
					log.Object, log.Field = o, field("accessLogging", i)
				}
				log.Provider, log.Disabled = name, entry.GetDisabled().GetValue()
				found[name] = log
			}
		}
	}
	return sortedByProvider(found)
}

func field(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

func isFor(of, mode TelemetryMode) bool {
	return of == telemetry.WorkloadMode_CLIENT_AND_SERVER || of == mode
}

func providerNames(providers []*telemetry.ProviderRef) []string {
	names := make([]string, 0, len(providers))
	for _, p := range providers {
		names = append(names, p.GetName())
	}
	return names
}

func sortedByProvider(found map[string]AccessLogging) []AccessLogging {
	all := make([]AccessLogging, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[name])
	}
	return all
}

// Tracing configures the spans that a proxy's listeners report.
type Tracing struct {
	Provider                                    string // "": none
	Disabled                                    bool
	Sampling                                    *float64 // percentage; nil: that of MeshConfig
	Tags                                        map[string]*telemetry.Tracing_CustomTag
	RequestIDSampling, IstioTags, NoPropagation bool
	// last Telemetry with an entry for tracing
	Object *object.Object
	Field  string // path of the entry for tracing below spec
}

// Tracing returns the tracing of a proxy's listeners; nil if neither a Telemetry nor
// defaultProviders sets it. Each field that an entry sets overrides the value of entries with lower
// precedence.
func (w *Mesh) Tracing(node Node, mode TelemetryMode) *Tracing {
	t := &Tracing{RequestIDSampling: true, IstioTags: true}
	set := false
	if defaults := w.mesh.DefaultProviders.GetTracing(); len(defaults) > 0 {
		t.Provider, set = defaults[0], true
	}
	for _, o := range w.Telemetries(node) {
		for i, entry := range o.Spec.(*telemetry.Telemetry).Tracing {
			set = true
			if !isFor(entry.GetMatch().GetMode(), mode) {
				continue
			}
			t.override(entry)
			t.Object, t.Field = o, field("tracing", i)
		}
	}
	if !set {
		return nil
	}
	return t
}

func (t *Tracing) override(entry *telemetry.Tracing) {
	if names := providerNames(entry.GetProviders()); len(names) > 0 {
		t.Provider = names[0]
	}
	if entry.GetDisableSpanReporting() != nil {
		t.Disabled = entry.DisableSpanReporting.Value
	}
	if entry.GetCustomTags() != nil {
		t.Tags = entry.CustomTags
	}
	if entry.GetRandomSamplingPercentage() != nil {
		t.Sampling = &entry.RandomSamplingPercentage.Value
	}
	if entry.GetUseRequestIdForTraceSampling() != nil {
		t.RequestIDSampling = entry.UseRequestIdForTraceSampling.Value
	}
	if entry.GetEnableIstioTags() != nil {
		t.IstioTags = entry.EnableIstioTags.Value
	}
	if entry.GetDisableContextPropagation() != nil {
		t.NoPropagation = entry.DisableContextPropagation.Value
	}
}
