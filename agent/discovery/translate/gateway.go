package translate

import (
	"fmt"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/resource"
)

// GatewayFilterChain is a filter chain of a gateway's listener. It either routes requests
// (RouteName) or forwards connections (Filters).
type GatewayFilterChain struct {
	Name        string
	ServerNames []string // server names (SNI); nil or "*" matches all
	// settings of TLS that the server terminates; nil: plain text or TLS passthrough
	TLS        *networking.ServerTLSSettings
	RouteName  string
	StatPrefix string // prefix of statistics; "": that of the listener
	Filters    []*listenerv3.Filter
	// the chain forwards mutual TLS without terminating it (AUTO_PASSTHROUGH): it matches the
	// mesh's ALPN protocols, and as with istiod, no policy applies
	AutoPassthrough bool
}

// HTTPRouteName returns Istio's name of the route configuration of a plain HTTP port of a gateway:
// http.80, or http.80.10.0.0.1 for servers bound to an address.
func HTTPRouteName(port uint32, bind string) string {
	return fmt.Sprintf("http.%d", port) + bound(bind)
}

// HTTPSRouteName returns Istio's name of the route configuration of one HTTPS server:
// https.443.name.gateway.namespace. If the server is bound to an address, the address is appended.
func HTTPSRouteName(port uint32, portName, gateway, namespace, bind string) string {
	return fmt.Sprintf("https.%d.%s.%s.%s", port, portName, gateway, namespace) + bound(bind)
}

func bound(bind string) string {
	if bind == "" {
		return ""
	}
	return "." + bind
}

// GatewayListener returns the listener for all servers with the same address ("": 0.0.0.0) and
// port. It has either one filter chain without TLS, or any number of chains that differ in SNI.
func GatewayListener(address string, port uint32, chains []GatewayFilterChain, m *mesh.Config,
	guards SecurityFilters, metrics *Metrics, t *Telemetry,
	origins ...resource.Origin) (*resource.Resource, error) {
	if address == "" {
		address = anyIPv4
	}
	l := newListener(address, port)
	inspect := false
	for _, c := range chains {
		chain, err := c.translate("outbound_"+ListenerName(address, port), m, guards, t, port)
		if err != nil {
			return nil, err
		}
		if err := metrics.addTo(chain, stream{}); err != nil {
			return nil, err
		}
		inspect = inspect || c.TLS != nil || chain.FilterChainMatch != nil
		l.FilterChains = append(l.FilterChains, chain)
	}
	if inspect {
		inspectTLS(l)
	}
	t.unmatched(l)
	return resource.New(l.Name, l,
		compact(slices.Concat(origins, guards.AllOrigins(), t.Origins))...)
}

func (c GatewayFilterChain) translate(statPrefix string, m *mesh.Config, guards SecurityFilters,
	t *Telemetry, port uint32) (*listenerv3.FilterChain, error) {
	out := &listenerv3.FilterChain{Name: c.Name, Filters: guards.before(outbound(port), c.Filters...)}
	if c.AutoPassthrough {
		out.Filters = c.Filters
	}
	if c.RouteName != "" {
		if c.StatPrefix != "" {
			statPrefix = c.StatPrefix
		}
		manager, err := connectionManager(c.RouteName, statPrefix,
			managerOptions{gateway: true, port: port}, m, guards, t)
		if err != nil {
			return nil, err
		}
		out.Filters = guards.Extensions.beforeRequests(outbound(port), manager)
	}
	if len(c.ServerNames) > 0 && !slices.Contains(c.ServerNames, "*") {
		out.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: c.ServerNames}
	}
	if c.AutoPassthrough {
		out.FilterChainMatch.ApplicationProtocols = meshALPN
	}
	if c.TLS == nil {
		return out, nil
	}
	context := downstreamTLS(c.TLS, m)
	if UsesMeshIdentity(c.TLS) {
		context = gatewayMutualTLS(c.TLS, c.RouteName != "")
	}
	if err := context.Validate(); err != nil {
		return nil, fmt.Errorf("TLS of %s: %w", c.Name, err)
	}
	out.TransportSocket = tlsSocket(context)
	return out, nil
}
