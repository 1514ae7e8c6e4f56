package translate

import (
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// WithoutTelemetry returns a listener without the effects of Telemetries and default providers: it
// logs only to the log files of the agent's configuration and of MeshConfig. If r has no such
// effects, it returns r itself.
func WithoutTelemetry(w *model.Mesh, r *resource.Resource) *resource.Resource {
	l := &listenerv3.Listener{}
	if proto.Unmarshal(r.EncodedMessage(), l) != nil {
		return r
	}
	m := w.MeshConfig()
	base := &Telemetry{FailureLogCluster: m.AccessLog.FailureLogCluster}
	if m.AccessLog.File != "" {
		if log, err := fileLogger(m.AccessLog); err == nil {
			base.AccessLogs = []*accesslogv3.AccessLog{log}
		}
	}
	if len(l.AccessLog) > 0 {
		l.AccessLog = nil
		base.unmatched(l)
	}
	for _, chain := range append(l.FilterChains, l.DefaultFilterChain) {
		for _, f := range chain.GetFilters() {
			base.replaceIn(f)
		}
	}
	origins := slices.DeleteFunc(slices.Clone(r.Origins), func(o resource.Origin) bool {
		return o.Kind == string(object.Telemetry)
	})
	out := resource.FromEncoded(r.Type, r.Name, encode(l), origins...)
	if out.Version == r.Version {
		return r
	}
	return out
}

// replaceIn replaces the logs and traces of a filter by those of t.
func (t *Telemetry) replaceIn(f *listenerv3.Filter) {
	var manager hcmv3.HttpConnectionManager
	var proxy tcpproxyv3.TcpProxy
	switch config := f.GetTypedConfig(); {
	case config.UnmarshalTo(&manager) == nil:
		t.addTo(&manager)
		manager.Tracing, manager.RequestIdExtension = nil, nil
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed(&manager)}
	case config.UnmarshalTo(&proxy) == nil:
		proxy.AccessLogOptions = nil
		if len(proxy.AccessLog) > 0 {
			proxy.AccessLog = t.loggers(ofConnections)
		}
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed(&proxy)}
	}
}
