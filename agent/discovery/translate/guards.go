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

// Guards holds the filters of a proxy that admit or deny what comes in, and the objects that they
// come from. The zero value admits everything.
type Guards struct {
	Requests    []*hcmv3.HttpFilter  // before the filters of routing
	Connections []*listenerv3.Filter // before the filter that forwards what is not parsed as HTTP
	Origins     []resource.Origin
}

// DenyAll returns the filters that deny everything: they allow what any of no rules matches.
func DenyAll(origins ...resource.Origin) Guards {
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW}
	return Guards{Origins: origins,
		Requests: []*hcmv3.HttpFilter{httpFilter(rbac.RequestFilter, &httprbacv3.RBAC{Rules: rules})},
		Connections: []*listenerv3.Filter{{Name: rbac.ConnectionFilter,
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typed(&networkrbacv3.RBAC{
				Rules: rules, StatPrefix: networkStatPrefix})}}}}
}

// IsGuard reports whether filters with a name admit or deny.
func IsGuard(name string) bool {
	return slices.Contains([]string{rbac.RequestFilter, rbac.ConnectionFilter, extAuthzFilter,
		networkExtAuthzFilter, rbac.TokenFilter}, name)
}

// IsDryRun reports whether the shadow rules with a prefix have no effect: others decide what an
// external authorizer is asked.
func IsDryRun(prefix string) bool { return prefix != authorizerShadow }

// addTo puts the filters for requests before those of a connection manager.
func (g Guards) addTo(manager *hcmv3.HttpConnectionManager) {
	manager.HttpFilters = slices.Concat(g.Requests, manager.HttpFilters)
}

// before returns the filters for connections, then others.
func (g Guards) before(filters ...*listenerv3.Filter) []*listenerv3.Filter {
	return slices.Concat(g.Connections, filters)
}
