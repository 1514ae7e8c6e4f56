package translate

import (
	"fmt"
	"maps"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	accessdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	celfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/discovery/model"
)

// Metrics configures a proxy's listeners to record Istio's metrics, by Envoy's access logger for
// statistics. The listeners are inbound (mode SERVER), or outbound or those of a gateway (CLIENT).
// Labels are formats of access logs. A nil *Metrics records nothing.
type Metrics struct {
	of   *model.Metrics
	node model.Node
	mode model.TelemetryMode
}

// NewMetrics returns the metrics of a proxy's listeners with a mode; nil for none.
func NewMetrics(of *model.Metrics, node model.Node, mode model.TelemetryMode) *Metrics {
	if of == nil {
		return nil
	}
	return &Metrics{of: of, node: node, mode: mode}
}

// metricsNamespace is the first part of the names of the statistics, as in Istio. The inclusion
// list of the bootstrap contains it, and the agent's merged metrics omit it.
const metricsNamespace = "istiocustom"

// maxSeries bounds the combinations of labels of one metric and listener. Envoy drops further
// ones. Istio has no bound.
const maxSeries = 1000

const metricPrefix = "istio_"

// addTo makes a filter chain (nil: none) count its requests or connections.
func (m *Metrics) addTo(chain *listenerv3.FilterChain, at stream) error {
	if m == nil || len(chain.GetFilters()) == 0 {
		return nil
	}
	last := chain.Filters[len(chain.Filters)-1]
	config, err := last.GetTypedConfig().UnmarshalNew()
	if err != nil {
		return fmt.Errorf("filter %s: %w", last.Name, err)
	}
	switch config := config.(type) {
	case *hcmv3.HttpConnectionManager:
		m.addToManager(config, at)
	case *tcpproxyv3.TcpProxy:
		m.addToProxy(config, at)
	}
	// do not modify chain.Filters: other chains may share it
	chain.Filters = append(slices.Clone(chain.Filters[:len(chain.Filters)-1]),
		&listenerv3.Filter{Name: last.Name, ConfigType: &listenerv3.Filter_TypedConfig{
			TypedConfig: typed(config)}})
	return nil
}

func (m *Metrics) addToManager(manager *hcmv3.HttpConnectionManager, at stream) {
	labels := m.labels(at)
	isGRPC := headerFilter("content-type", `application/grpc(\+.*)?`)
	manager.AccessLog = append(manager.AccessLog,
		m.logger(inverted(isGRPC), m.requests(labels, "http")),
		m.logger(isGRPC, m.requests(labels, "grpc")))
}

// requests returns the statistics of HTTP requests, or of gRPC requests. Envoy cannot count gRPC
// messages in this way.
func (m *Metrics) requests(labels []label, protocol string) *statsv3.Config {
	all := slices.Concat(labels, []label{{"request_protocol", protocol},
		{"response_code", "%RESPONSE_CODE%"}, {"response_flags", "%RESPONSE_FLAGS%"}})
	c := &statsv3.Config{}
	if protocol == "grpc" {
		all = append(all, label{"grpc_response_status", "%GRPC_STATUS_NUMBER%"})
	}
	m.count(c, "requests_total", all, "")
	m.observe(c, "request_duration_milliseconds", all, statsv3.Config_Histogram_Milliseconds,
		"%DURATION%")
	m.observe(c, "request_bytes", all, statsv3.Config_Histogram_Bytes,
		"%DOWNSTREAM_WIRE_BYTES_RECEIVED%")
	m.observe(c, "response_bytes", all, statsv3.Config_Histogram_Bytes,
		"%DOWNSTREAM_WIRE_BYTES_SENT%")
	return c
}

// addToProxy makes a TCP proxy record connections. It counts a connection as opened when Envoy has
// connected to the destination, or at the end if Envoy never has. If labels contain identities, it
// counts an opened connection at the end, because the identities are unknown before. The other
// access loggers log only the end, as without metrics.
func (m *Metrics) addToProxy(proxy *tcpproxyv3.TcpProxy, at stream) {
	labels := append(m.labels(at), label{"request_protocol", "tcp"},
		label{"response_flags", "%RESPONSE_FLAGS%"})
	opened, closed := &statsv3.Config{}, &statsv3.Config{}
	m.count(opened, "tcp_connections_opened_total", labels, "")
	m.count(closed, "tcp_connections_closed_total", labels, "")
	m.count(closed, "tcp_sent_bytes_total", labels, "%DOWNSTREAM_WIRE_BYTES_SENT%")
	m.count(closed, "tcp_received_bytes_total", labels, "%DOWNSTREAM_WIRE_BYTES_RECEIVED%")
	if at.identities != noIdentities {
		closed.Counters = append(opened.Counters, closed.Counters...)
		proxy.AccessLog = append(proxy.AccessLog, m.logger(nil, closed))
		return
	}
	ended := logTypes(accessdatav3.AccessLogType_TcpConnectionEnd)
	for _, log := range proxy.AccessLog {
		log.Filter = and(ended, log.Filter)
	}
	connected := logTypes(accessdatav3.AccessLogType_TcpUpstreamConnected)
	proxy.AccessLog = append(proxy.AccessLog,
		m.logger(or(connected, and(ended, celFilter("!has(upstream.local_address)"))), opened),
		m.logger(ended, closed))
	if proxy.AccessLogOptions == nil {
		proxy.AccessLogOptions = &tcpproxyv3.TcpProxy_TcpAccessLogOptions{}
	}
	proxy.AccessLogOptions.FlushAccessLogOnConnected = true
}

func (m *Metrics) logger(filter *accesslogv3.AccessLogFilter,
	config *statsv3.Config) *accesslogv3.AccessLog {
	config.StatsScope = &typev3.Scope{Prefix: metricsNamespace,
		MaxCounters:   wrapperspb.UInt32(maxSeries * uint32(max(len(config.Counters), 1))),
		MaxHistograms: wrapperspb.UInt32(maxSeries * uint32(max(len(config.Histograms), 1)))}
	return &accesslogv3.AccessLog{Name: "envoy.access_loggers.stats", Filter: filter,
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typed(config)}}
}

// count adds a counter unless a Telemetry disables it. It adds the value of the format, or 1.
func (m *Metrics) count(c *statsv3.Config, name string, labels []label, format string) {
	if m.of.Overrides[name].Disabled {
		return
	}
	counter := &statsv3.Config_Counter{Stat: m.stat(name, labels), ValueFormat: format}
	if format == "" {
		counter.ValueFixed = wrapperspb.UInt64(1)
	}
	c.Counters = append(c.Counters, counter)
}

func (m *Metrics) observe(c *statsv3.Config, name string, labels []label,
	unit statsv3.Config_Histogram_Unit, format string) {
	if m.of.Overrides[name].Disabled {
		return
	}
	c.Histograms = append(c.Histograms, &statsv3.Config_Histogram{Stat: m.stat(name, labels),
		Unit: unit, ValueFormat: format})
}

// stat returns a statistic with labels as a Telemetry overrides them. Envoy permits no empty label,
// which Prometheus treats as absent.
func (m *Metrics) stat(name string, labels []label) *statsv3.Config_Stat {
	stat := &statsv3.Config_Stat{Name: metricPrefix + name}
	changes := maps.Clone(m.of.Overrides[name].Tags)
	add := func(name, format string) {
		if format != "" {
			stat.Tags = append(stat.Tags, &statsv3.Config_Tag{Name: name, ValueFormat: format})
		}
	}
	for _, l := range labels {
		if expression, ok := changes[l.name]; ok {
			delete(changes, l.name)
			if expression == "" {
				continue
			}
			l.format = firstOf(cel(expression), unknownOperator)
		}
		add(l.name, l.format)
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if changes[name] != "" {
			add(name, firstOf(cel(changes[name]), unknownOperator))
		}
	}
	return stat
}

func logTypes(types ...accessdatav3.AccessLogType) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslogv3.LogTypeFilter{Types: types}}}
}

// and returns a filter that matches if all filters do; nil matches always.
func and(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	filters = slices.DeleteFunc(filters, func(f *accesslogv3.AccessLogFilter) bool {
		return f == nil
	})
	if len(filters) == 1 {
		return filters[0]
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
		AndFilter: &accesslogv3.AndFilter{Filters: filters}}}
}

func or(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{
		OrFilter: &accesslogv3.OrFilter{Filters: filters}}}
}

func celFilter(expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name: "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{
				TypedConfig: typed(&celfilterv3.ExpressionFilter{Expression: expression})}}}}
}

// headerFilter returns a filter for requests whose named header matches a regular expression; a
// missing header counts as empty.
func headerFilter(name, expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_HeaderFilter{
		HeaderFilter: &accesslogv3.HeaderFilter{Header: &routev3.HeaderMatcher{Name: name,
			TreatMissingHeaderAsEmpty: true,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
				StringMatch: &matcherv3.StringMatcher{
					MatchPattern: &matcherv3.StringMatcher_SafeRegex{
						SafeRegex: &matcherv3.RegexMatcher{Regex: expression}}}}}}}}
}

// inverted returns a filter of headerFilter that matches all other requests.
func inverted(filter *accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	header := filter.GetHeaderFilter().Header
	out := headerFilter(header.Name, header.GetStringMatch().GetSafeRegex().Regex)
	out.GetHeaderFilter().Header.InvertMatch = true
	return out
}
