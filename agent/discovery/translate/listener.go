package translate

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// ListenerName is Istio's: address_port.
func ListenerName(address string, port uint32) string { return fmt.Sprintf("%s_%d", address, port) }

// OutboundName is the name of a sidecar's listener of a port.
func OutboundName(port uint32) string { return ListenerName(loopback, port) }

func newListener(address string, port uint32, chains ...*listenerv3.FilterChain) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: ListenerName(address, port), Address: socketAddress(address, port), FilterChains: chains,
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		EnableReusePort:  wrapperspb.Bool(true), // a second Envoy takes over side by side
	}
}

// HTTPListener listens on the loopback for all HTTP services of a port; which one a request is for, its host tells.
func HTTPListener(port uint32, m *mesh.Config, origins ...resource.Origin) (*resource.Resource, error) {
	manager, err := connectionManager(fmt.Sprint(port), "outbound_"+OutboundName(port), false, m)
	if err != nil {
		return nil, err
	}
	l := newListener(loopback, port, &listenerv3.FilterChain{Filters: []*listenerv3.Filter{manager}})
	return resource.New(l.Name, l, origins...)
}

// TCPListener listens on the loopback for the one TCP service of a port.
func TCPListener(port uint32, host string, m *mesh.Config, origins ...resource.Origin) (*resource.Resource, error) {
	proxy, err := tcpProxy(ClusterName(port, "", host), m)
	if err != nil {
		return nil, err
	}
	l := newListener(loopback, port, &listenerv3.FilterChain{Filters: []*listenerv3.Filter{proxy}})
	return resource.New(l.Name, l, origins...)
}

// TLSListener listens on the loopback for all services of a port that speak TLS; the server name tells them apart.
func TLSListener(port uint32, hosts []string, m *mesh.Config, origins ...resource.Origin) (*resource.Resource, error) {
	l := newListener(loopback, port)
	for _, host := range hosts {
		proxy, err := tcpProxy(ClusterName(port, "", host), m)
		if err != nil {
			return nil, err
		}
		match := &listenerv3.FilterChainMatch{ServerNames: []string{host}}
		if host == "*" {
			match = nil
		}
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{Name: host, FilterChainMatch: match, Filters: []*listenerv3.Filter{proxy}})
	}
	inspectTLS(l)
	return resource.New(l.Name, l, origins...)
}

// inspectTLS makes the server name known before a filter chain is chosen.
func inspectTLS(l *listenerv3.Listener) {
	l.ListenerFilters = append(l.ListenerFilters, &listenerv3.ListenerFilter{Name: "envoy.filters.listener.tls_inspector",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: typed(&tlsinspectorv3.TlsInspector{})}})
	l.ListenerFiltersTimeout = durationpb.New(0)
}

func tcpProxy(cluster string, m *mesh.Config) (*listenerv3.Filter, error) {
	logs, err := loggers(m.AccessLog)
	if err != nil {
		return nil, err
	}
	return networkFilter("envoy.filters.network.tcp_proxy", &tcpproxyv3.TcpProxy{StatPrefix: cluster, AccessLog: logs,
		ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}})
}

// CanServerName tells whether Envoy can tell a host by its server name: exact ones and whole first labels.
func CanServerName(host string) bool {
	return !model.IsWildcard(host) || host == "*" || len(host) > 2 && host[1] == '.'
}
