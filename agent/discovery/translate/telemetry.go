package translate

import (
	"fmt"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// Telemetry configures what the filters of listeners in one direction log and trace. The zero value
// logs and traces nothing.
type Telemetry struct {
	// AccessLogs are the access loggers of filters for requests and for connections.
	AccessLogs []*accesslogv3.AccessLog
	// FailureLogCluster is the cluster of the service that receives log entries of failed requests;
	// "": none
	FailureLogCluster string
	tracing           *tracing

	Origins   []resource.Origin // Telemetries with an effect, also on metrics
	Problems  []object.Problem
	HostsRead []string // sorted hosts of the services that receive logs and spans
}

// observer translates the Telemetries for the listeners of a proxy in one direction.
type observer struct {
	world *model.Mesh
	node  model.Node
	Telemetry
}

// Telemetries translates the Telemetries that apply to the listeners of a proxy in one direction. A
// provider that cannot be used is left out and reported.
func Telemetries(w *model.Mesh, node model.Node, mode model.TelemetryMode) Telemetry {
	o := &observer{world: w, node: node}
	o.FailureLogCluster = w.MeshConfig().AccessLog.FailureLogCluster
	o.logs(mode)
	o.trace(mode)
	if m := w.Metrics(node, mode); m != nil && m.Object != nil {
		o.Origins = append(o.Origins, m.Object.Origin())
	}
	slices.Sort(o.HostsRead)
	o.HostsRead, o.Origins = slices.Compact(o.HostsRead), compact(o.Origins)
	return o.Telemetry
}

// Equal reports whether two values result in equal listeners.
func (t *Telemetry) Equal(other *Telemetry) bool {
	return t.FailureLogCluster == other.FailureLogCluster && slices.EqualFunc(t.AccessLogs,
		other.AccessLogs,
		func(a, b *accesslogv3.AccessLog) bool { return proto.Equal(a, b) }) &&
		t.tracing.same(other.tracing) && slices.Equal(t.Origins, other.Origins)
}

// logs adds the access loggers. As in Istio, the log of MeshConfig is written only if no Telemetry
// or default provider sets one. The log in section [telemetry] of the agent's configuration is
// always written.
func (o *observer) logs(mode model.TelemetryMode) {
	configured := false
	for _, l := range o.world.AccessLogging(o.node, mode) {
		logger, ok := o.logger(l)
		configured = configured || ok
		if logger != nil && !l.Disabled {
			o.AccessLogs = append(o.AccessLogs, logger)
		}
		if ok && l.Object != nil {
			o.Origins = append(o.Origins, l.Object.Origin())
		}
	}
	m := o.world.MeshConfig()
	if m.AccessLog.File == "" || configured && !m.AccessLog.ConfiguredOnHost {
		return
	}
	// the format was validated with the configuration
	if logger, err := fileLogger(m.AccessLog); err == nil {
		o.AccessLogs = append([]*accesslogv3.AccessLog{logger}, o.AccessLogs...)
	}
}

// logger returns the access logger of a provider. It reports false, and a problem, if the provider
// cannot be used.
func (o *observer) logger(l model.AccessLogging) (*accesslogv3.AccessLog, bool) {
	provider := o.world.MeshConfig().FindProvider(l.Provider)
	logger, why := o.accessLogger(provider)
	if provider == nil {
		why = fmt.Sprintf("MeshConfig has no provider %q", l.Provider)
	}
	if why != "" {
		o.problem(l.Object, l.Field+".providers", "nothing is logged by provider "+l.Provider+": "+why)
		return nil, false
	}
	if l.Filter != "" {
		logger.Filter = &accesslogv3.AccessLogFilter{
			FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
				ExtensionFilter: &accesslogv3.ExtensionFilter{
					Name: "envoy.access_loggers.extension_filters.cel",
					ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{
						TypedConfig: typed(&celv3.ExpressionFilter{Expression: l.Filter})}}}}
	}
	if err := logger.ValidateAll(); err != nil {
		o.problem(l.Object, l.Field+".providers", "Envoy would refuse the logger of provider "+
			l.Provider+": "+err.Error())
		return nil, false
	}
	return logger, true
}

// problem reports that an entry of a Telemetry (nil: a default provider) has no effect, and why.
func (o *observer) problem(by *object.Object, field, message string) {
	const fix = "name a provider of extensionProviders in MeshConfig, whose service a ServiceEntry has"
	if by == nil {
		o.Problems = append(o.Problems, object.Problem{Severity: condition.Warning,
			Message: "defaultProviders of MeshConfig: " + message, Fix: fix})
		return
	}
	o.Problems = append(o.Problems, by.Warning(field, message, fix))
}

// cluster returns the cluster and the host of a provider's service, and records that the proxy
// needs them; why explains why the service cannot be used.
func (o *observer) cluster(service string, port uint32) (cluster, host, why string) {
	cluster, host, why = providerCluster(o.world, service, port)
	o.HostsRead = append(o.HostsRead, host)
	if why == "" && o.world.Service(host, o.node.Namespace) == nil {
		why = host + " is not exported to the namespace of this proxy"
	}
	return cluster, host, why
}

// loggers returns the access loggers of a filter. The logger of failures is the last one, because
// EnvoyFilters may refer to the others by index.
func (t *Telemetry) loggers(what logged) []*accesslogv3.AccessLog {
	all := slices.Clip(t.AccessLogs)
	if t.FailureLogCluster != "" {
		all = append(all, failures(t.FailureLogCluster, what))
	}
	return all
}

// addTo sets the access log and the tracing of a connection manager.
func (t *Telemetry) addTo(manager *hcmv3.HttpConnectionManager) {
	manager.AccessLog = t.loggers(ofRequests)
	t.tracing.addTo(manager)
}

// unmatched makes a listener log the connections that no filter chain matches, as istiod does.
func (t *Telemetry) unmatched(l *listenerv3.Listener) {
	for _, log := range t.AccessLogs {
		l.AccessLog = append(l.AccessLog, &accesslogv3.AccessLog{Name: log.Name,
			ConfigType: log.ConfigType, Filter: both(noRoute(), log.Filter)})
	}
}

// noRoute returns a filter for connections that no filter chain matches.
func noRoute() *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}}}}
}

func both(a, b *accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	if b == nil {
		return a
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
		AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{a, b}}}}
}

// AccessLog configures where listeners write a line for each request or connection.
type AccessLog = mesh.AccessLog
