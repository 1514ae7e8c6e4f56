package translate

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"

	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/resource"
)

// Guards holds the filters of a proxy that allow or deny incoming requests and connections, with
// the objects that they were translated from. The zero value allows everything.
type Guards struct {
	Requests []*hcmv3.HttpFilter // HTTP filters; they precede those for routing
	// network filters; they precede the filter that forwards connections not parsed as HTTP
	Connections []*listenerv3.Filter
	Origins     []resource.Origin
}

// DenyAll returns filters that deny everything: they have the action ALLOW and no rules.
func DenyAll(origins ...resource.Origin) Guards {
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW}
	return Guards{Origins: origins,
		Requests: []*hcmv3.HttpFilter{httpFilter(rbac.RequestFilter, &httprbacv3.RBAC{Rules: rules})},
		Connections: []*listenerv3.Filter{{Name: rbac.ConnectionFilter,
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typed(&networkrbacv3.RBAC{
				Rules: rules, StatPrefix: networkStatPrefix})}}}}
}

// IsGuard reports whether a filter with a name allows or denies.
func IsGuard(name string) bool {
	return slices.Contains([]string{rbac.RequestFilter, rbac.ConnectionFilter, extAuthzFilter,
		networkExtAuthzFilter, rbac.TokenFilter}, name)
}

// IsDryRun reports whether the shadow rules of an RBAC filter with a prefix have no effect. Those
// with the prefix of authorizers decide whether an external authorizer is called.
func IsDryRun(prefix string) bool { return prefix != authorizerShadow }

// addTo prepends the HTTP filters to those of a connection manager.
func (g Guards) addTo(manager *hcmv3.HttpConnectionManager) {
	manager.HttpFilters = slices.Concat(g.Requests, manager.HttpFilters)
}

// before returns the network filters of g, followed by filters.
func (g Guards) before(filters ...*listenerv3.Filter) []*listenerv3.Filter {
	return slices.Concat(g.Connections, filters)
}
