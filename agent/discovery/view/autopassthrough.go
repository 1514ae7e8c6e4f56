package view

import (
	"maps"
	"slices"
	"strings"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
)

// autoPassthrough holds the routes of a listener's servers with AUTO_PASSTHROUGH.
type autoPassthrough struct {
	servers []server
	// routes of connections, by the host of their service
	routes map[string][]translate.ConnectionRoute
}

// update determines the routes of hosts, and reports whether some changed.
func (a *autoPassthrough) update(v *ProxyView, hosts map[string]struct{}) (changed bool) {
	for host := range hosts {
		now := a.route(v, host)
		changed = changed || !slices.EqualFunc(a.routes[host], now, translate.ConnectionRoute.Equal)
		if len(now) == 0 {
			delete(a.routes, host)
		} else {
			a.routes[host] = now
		}
	}
	return changed
}

func (a *autoPassthrough) route(v *ProxyView, host string) []translate.ConnectionRoute {
	service := v.world.Service(host, v.node.Namespace)
	if service == nil || !slices.ContainsFunc(a.servers, func(s server) bool {
		return s.serves(service)
	}) {
		return nil
	}
	router := &translate.RouteTranslator{Mesh: v.world, Node: v.node}
	return router.AutoPassthroughRoutes(service)
}

// serves reports whether a server with AUTO_PASSTHROUGH has the host and namespace of a service.
func (s server) serves(service *model.Service) bool {
	return slices.ContainsFunc(s.spec.Hosts, func(written string) bool {
		namespace, own, _ := model.SplitHost(strings.ToLower(written))
		if namespace == "." {
			namespace = s.object.Namespace
		}
		return (namespace == "*" || namespace == service.Namespace) && model.HostCovers(own, service.Host)
	})
}

// addAuto adds a filter chain for each route of the listener's servers with AUTO_PASSTHROUGH.
func (c *connections) addAuto(a *autoPassthrough) error {
	if len(c.view.guards.RBACNetwork) > 0 && len(a.routes) > 0 {
		c.problems = append(c.problems, a.servers[0].problem("tls.mode",
			"no AuthorizationPolicy applies to connections that AUTO_PASSTHROUGH passes on, as in Istio",
			"have the proxies of the services apply the policies"))
	}
	if len(a.routes) == 0 {
		c.problems = append(c.problems, a.servers[0].problem("hosts",
			"no service of the mesh (location MESH_INTERNAL) has one of them: nothing is passed on",
			"add a ServiceEntry, or correct the hosts"))
	}
	for _, host := range slices.Sorted(maps.Keys(a.routes)) {
		for _, route := range a.routes[host] {
			filters, err := route.Filters(&c.view.telemetry.client)
			if err != nil {
				return err
			}
			c.chains = append(c.chains, translate.GatewayFilterChain{Name: route.ServerNames[0],
				Filters: filters, ServerNames: route.ServerNames, AutoPassthrough: true})
			c.origin(route)
		}
	}
	return nil
}

// passed publishes the clusters that the router's servers with AUTO_PASSTHROUGH forward to.
func (r *router) passed(v *ProxyView, hosts map[string]struct{}) {
	for host := range hosts {
		unit, service := "passed/"+host, v.world.Service(host, v.node.Namespace)
		if service == nil || !r.auto {
			v.put(unit)
			continue
		}
		v.put(unit, translate.AutoPassthroughClusters(v.world.MeshConfig(), service,
			v.world.DestinationRule(service, v.node), v.node)...)
	}
}
