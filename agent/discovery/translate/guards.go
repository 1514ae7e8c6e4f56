package translate

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	extensions "istio.io/api/extensions/v1alpha1"
	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/resource"
)

// SecurityFilters holds the filters of a proxy that allow or deny incoming requests and
// connections, their origins, and the proxy's extensions. The zero value allows everything.
type SecurityFilters struct {
	// Filters of requests precede those for routing: ExtAuthzHTTP, JWTAuthn, RBACHTTP.
	ExtAuthzHTTP []*hcmv3.HttpFilter // external authorizers
	JWTAuthn     []*hcmv3.HttpFilter // verification of tokens
	RBACHTTP     []*hcmv3.HttpFilter // AuthorizationPolicies
	// Network filters precede the filter that forwards connections not parsed as HTTP.
	ExtAuthzNetwork, RBACNetwork []*listenerv3.Filter

	Extensions Extensions
	Origins    []resource.Origin
}

// DenyAll returns filters that deny everything: they have the action ALLOW and no rules.
func DenyAll(origins ...resource.Origin) SecurityFilters {
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW}
	return SecurityFilters{Origins: origins,
		RBACHTTP: []*hcmv3.HttpFilter{httpFilter(rbac.RequestFilter,
			&httprbacv3.RBAC{Rules: rules})},
		RBACNetwork: []*listenerv3.Filter{{Name: rbac.ConnectionFilter,
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typed(&networkrbacv3.RBAC{
				Rules: rules, StatPrefix: networkStatPrefix})}}}}
}

// IsSecurityFilter reports whether the filter with a name can deny access.
func IsSecurityFilter(name string) bool {
	return slices.Contains([]string{rbac.RequestFilter, rbac.ConnectionFilter, extAuthzFilter,
		networkExtAuthzFilter, rbac.TokenFilter}, name)
}

// IsDryRunStatPrefix reports whether the shadow rules of an RBAC filter with a prefix are those of
// dry-run policies. Otherwise they determine whether an external authorizer is called.
func IsDryRunStatPrefix(prefix string) bool { return prefix != authorizerShadow }

// AllOrigins returns the origins of the filters and of the extensions.
func (g SecurityFilters) AllOrigins() []resource.Origin {
	return slices.Concat(g.Origins, g.Extensions.origins())
}

// at identifies listeners: the port, and the direction as a workload mode. Port 0 is any undeclared
// port.
type at struct {
	mode types.WorkloadMode
	port uint32
}

// outbound identifies the outbound listeners, or the listeners of a gateway, on a port; inbound
// identifies the inbound ones.
func outbound(port uint32) at { return at{types.WorkloadMode_CLIENT, port} }
func inbound(port uint32) at  { return at{types.WorkloadMode_SERVER, port} }

// addTo prepends the HTTP filters to those of a connection manager.
func (g SecurityFilters) addTo(manager *hcmv3.HttpConnectionManager, to at) {
	of := func(phase extensions.TrafficExtension_ExecutionPhase) []*hcmv3.HttpFilter {
		return g.Extensions.requests(phase, to.mode, to.port)
	}
	manager.HttpFilters = slices.Concat(g.ExtAuthzHTTP, of(extensions.TrafficExtension_AUTHN),
		g.JWTAuthn,
		of(extensions.TrafficExtension_AUTHZ), g.RBACHTTP, of(extensions.TrafficExtension_STATS),
		of(extensions.TrafficExtension_UNSPECIFIED), manager.HttpFilters)
}

// before returns the network filters of g, followed by filters.
func (g SecurityFilters) before(to at, filters ...*listenerv3.Filter) []*listenerv3.Filter {
	of := func(phase extensions.TrafficExtension_ExecutionPhase) []*listenerv3.Filter {
		return g.Extensions.connections(phase, to.mode, to.port)
	}
	return slices.Concat(g.ExtAuthzNetwork, of(extensions.TrafficExtension_AUTHN),
		of(extensions.TrafficExtension_AUTHZ), g.RBACNetwork, of(extensions.TrafficExtension_STATS),
		of(extensions.TrafficExtension_UNSPECIFIED), filters)
}

// beforeRequests returns the extensions' network filters, followed by a filter that parses HTTP.
func (e Extensions) beforeRequests(to at, manager *listenerv3.Filter) []*listenerv3.Filter {
	return SecurityFilters{Extensions: e}.before(to, manager)
}
