package translate

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
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

// ConnectionListener listens on the loopback for services of a port whose requests are not told apart: one, or those that
// the server name of TLS tells apart.
func ConnectionListener(port uint32, routes []Connection, tls bool, m *mesh.Config, origins ...resource.Origin) (*resource.Resource, error) {
	l := newListener(loopback, port)
	for _, route := range routes {
		chain, err := route.Chain(strings.Join(route.ServerNames, ","), m.AccessLog)
		if err != nil {
			return nil, err
		}
		l.FilterChains = append(l.FilterChains, chain)
	}
	if tls {
		inspectTLS(l)
	}
	return resource.New(l.Name, l, compact(origins)...)
}

// inspectTLS makes the server name known before a filter chain is chosen.
func inspectTLS(l *listenerv3.Listener) {
	l.ListenerFilters = append(l.ListenerFilters, &listenerv3.ListenerFilter{Name: "envoy.filters.listener.tls_inspector",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: typed(&tlsinspectorv3.TlsInspector{})}})
	l.ListenerFiltersTimeout = durationpb.New(0)
}

// CanServerName tells whether Envoy can tell a host by its server name: exact ones and whole first labels.
func CanServerName(host string) bool {
	return !model.IsWildcard(host) || host == "*" || len(host) > 2 && host[1] == '.'
}
