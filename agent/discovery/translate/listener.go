package translate

import (
	"fmt"
	"slices"
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

// ListenerName returns Istio's name of a listener: address_port.
func ListenerName(address string, port uint32) string { return fmt.Sprintf("%s_%d", address, port) }

func newListener(address string, port uint32,
	chains ...*listenerv3.FilterChain) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: ListenerName(address, port), Address: socketAddress(address, port),
		FilterChains:     chains,
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		// in a side-by-side reload, a second Envoy binds the same port
		EnableReusePort: wrapperspb.Bool(true),
	}
}

// dualStack makes a listener for captured connections also receive those over IPv6, as istiod does
// for proxies with addresses of both families.
func dualStack(l *listenerv3.Listener, port uint32) {
	l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socketAddress(anyIPv6, port)}}
}

// OutboundListener is a listener of a sidecar for outbound traffic.
type OutboundListener struct {
	Address string
	Port    uint32
	// the listener is not bound, and gets captured connections to its address and port
	Captured bool
	// a captured listener for all IPv4 addresses also serves all IPv6 addresses
	IPv6 bool
	// name of the route configuration; "": connections are not parsed as HTTP
	RouteConfig string
	// Envoy detects HTTP, and forwards connections with other content
	DetectHTTP      bool
	ResolveHosts    bool              // hosts of requests are resolved with dynamic DNS
	Connections     []ConnectionRoute // routes of connections that are not parsed as HTTP
	FallbackCluster string            // cluster for captured connections that no route matches
	Metrics         *Metrics
	Extensions      Extensions
	Telemetry       Telemetry
}

// Listener returns the Envoy listener for the outbound traffic.
func (o OutboundListener) Listener(m *mesh.Config, origins ...resource.Origin) (*resource.Resource,
	error) {
	l := newListener(o.Address, o.Port)
	if o.RouteConfig != "" {
		manager, err := connectionManager(o.RouteConfig, "outbound_"+l.Name,
			managerOptions{port: o.Port,
				resolve: o.ResolveHosts}, m, SecurityFilters{Extensions: o.Extensions},
			&o.Telemetry)
		if err != nil {
			return nil, err
		}
		chain := &listenerv3.FilterChain{
			Filters: o.Extensions.beforeRequests(outbound(o.Port), manager)}
		if o.DetectHTTP {
			chain.FilterChainMatch = &listenerv3.FilterChainMatch{ApplicationProtocols: plainHTTP}
		}
		l.FilterChains = append(l.FilterChains, chain)
	}
	for _, route := range o.Connections {
		chain, err := route.FilterChain(strings.Join(route.ServerNames, ","), &o.Telemetry)
		if err != nil {
			return nil, err
		}
		chain.Filters = SecurityFilters{Extensions: o.Extensions}.before(outbound(o.Port),
			chain.Filters...)
		l.FilterChains = append(l.FilterChains, chain)
	}
	inspect(l, m)
	if o.Captured {
		l.BindToPort = wrapperspb.Bool(false)
		if o.IPv6 && o.Address == anyIPv4 {
			dualStack(l, o.Port)
		}
		rest, err := passOn(&o.Telemetry, o.FallbackCluster)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(l.FilterChains, func(c *listenerv3.FilterChain) bool {
			return c.FilterChainMatch == nil
		}) {
			l.DefaultFilterChain = &listenerv3.FilterChain{Name: o.FallbackCluster,
				Filters: []*listenerv3.Filter{rest}}
		}
	}
	for _, chain := range append(l.FilterChains, l.DefaultFilterChain) {
		if err := o.Metrics.addTo(chain, stream{}); err != nil {
			return nil, err
		}
	}
	return resource.New(l.Name, l, compact(slices.Concat(origins, o.Extensions.origins(),
		o.Telemetry.Origins))...)
}

// inspectTLS adds the listener filter that detects the SNI of TLS.
func inspectTLS(l *listenerv3.Listener) {
	l.ListenerFilters = append(l.ListenerFilters, listenerFilter("tls_inspector",
		&tlsinspectorv3.TlsInspector{}))
	l.ListenerFiltersTimeout = durationpb.New(0)
}

// CanMatchSNI reports whether Envoy can match a host by SNI: an exact name, or a wildcard in
// place of whole first labels.
func CanMatchSNI(host string) bool {
	return !model.IsWildcard(host) || host == "*" || len(host) > 2 && host[1] == '.'
}
