package view

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// gatewayRoutes is one route configuration of a gateway, translated from the VirtualServices of all
// servers that share it.
type gatewayRoutes struct {
	port    uint32
	servers []server // servers that share the route configuration, the oldest first
	hosts   map[string]*gatewayHost
	dirty   bool // servers were added or removed
}

// gatewayHost is the virtual host of one host in a route configuration, with its inputs.
type gatewayHost struct {
	gatewayInputs
	virtualHost *translate.VirtualHost
}

type gatewayInputs struct {
	routings []*model.MergedVirtualService
	redirect bool // requests are redirected to https
}

func (g gatewayInputs) equal(h gatewayInputs) bool {
	return g.redirect == h.redirect && slices.Equal(g.routings, h.routings)
}

// reconcile updates and publishes the route configuration if a change affects it.
func (g *gatewayRoutes) reconcile(v *ProxyView, name string, touched model.ChangeSummary) {
	bindings := g.dirty || slices.ContainsFunc(g.servers, func(s server) bool {
		_, ok := touched.RoutedGateways[s.gateway()]
		return ok
	})
	stale := map[string]bool{}
	for host, h := range g.hosts {
		if slices.ContainsFunc(h.virtualHost.HostsRead, func(read string) bool {
			_, ok := touched.ChangedHosts[read]
			return ok
		}) {
			stale[host] = true
		}
	}
	if !bindings && len(stale) == 0 {
		return
	}
	inputs, problems := g.inputs(v)
	router := &translate.RouteTranslator{Mesh: v.world, Node: v.node, Gateways: g.gateways(),
		Port: g.port,
		TLS:  g.servers[0].class() == model.TLS}
	changed := g.dirty
	var origins []resource.Origin
	for host, in := range inputs {
		known := g.hosts[host]
		if known != nil && known.equal(in) && !stale[host] && !g.dirty {
			continue
		}
		vh := router.GatewayVirtualHost(host, in.routings, in.redirect)
		if known == nil || !bytes.Equal(known.virtualHost.Encoded, vh.Encoded) {
			changed = true
			origins = append(origins, vh.Origins...)
		} else if !slices.Equal(known.virtualHost.Origins, vh.Origins) {
			changed = true // equal bytes, but the lines of the origins have changed
		}
		g.hosts[host] = &gatewayHost{gatewayInputs: in, virtualHost: vh}
	}
	for host := range g.hosts {
		if _, ok := inputs[host]; !ok {
			delete(g.hosts, host)
			changed = true
		}
	}
	g.dirty = false
	for _, h := range g.hosts {
		problems = append(problems, h.virtualHost.Problems...)
	}
	v.report("route/"+name, dedupe(problems))
	if changed {
		g.publish(v, name, origins)
	}
}

func (g *gatewayRoutes) publish(v *ProxyView, name string, changed []resource.Origin) {
	hosts := make([]*translate.VirtualHost, 0, len(g.hosts))
	for _, host := range slices.Sorted(maps.Keys(g.hosts)) {
		hosts = append(hosts, g.hosts[host].virtualHost)
	}
	fallback := translate.NotFoundHost(g.port)
	if len(hosts) > 0 {
		fallback = nil
	}
	var gateways []resource.Origin
	for _, s := range g.servers {
		gateways = append(gateways, s.origin())
	}
	v.put("route/"+name, translate.RouteConfiguration(name, hosts, fallback, false, changed, gateways...))
}

// gateways returns the names of all Gateways that share the route configuration.
func (g *gatewayRoutes) gateways() []string {
	var names []string
	for _, s := range g.servers {
		names = append(names, s.gateway())
	}
	return slices.Compact(names)
}

// inputs returns the VirtualServices by host, oldest first, and problems of those that have no
// effect.
func (g *gatewayRoutes) inputs(v *ProxyView) (map[string]gatewayInputs, []object.Problem) {
	inputs := map[string]gatewayInputs{}
	var problems []object.Problem
	reached := map[*model.MergedVirtualService]bool{}
	for _, s := range g.servers {
		redirect := s.spec.GetTls().GetHttpsRedirect()
		for _, routing := range v.world.GatewayVirtualServices(s.gateway(), v.node.Namespace) {
			if !routesHTTP(routing) {
				continue
			}
			met := s.meet(routing)
			reached[routing] = reached[routing] || len(met) > 0
			for _, host := range met {
				in := inputs[host]
				if !slices.Contains(in.routings, routing) {
					in.routings = append(in.routings, routing)
				}
				in.redirect = in.redirect || redirect
				inputs[host] = in
			}
		}
		for _, host := range s.hostNames() {
			if redirect {
				in := inputs[host]
				in.redirect = true
				inputs[host] = in
			} else if by, ok := g.redirects(host); ok {
				problems = append(problems, s.problem("hosts", fmt.Sprintf(
					"requests to %s on port %d are redirected to https by %s at %s",
					host, g.port, by.object.Key, by.object.Position()),
					"name each host in one server of a port only"))
			}
		}
	}
	for host := range inputs {
		slices.SortFunc(inputs[host].routings, v.world.CompareVirtualServices(v.node.Namespace))
	}
	for routing, ok := range reached {
		if !ok && !g.reachedElsewhere(v, routing) {
			problems = append(problems, routing.Object.Warning("hosts",
				fmt.Sprintf("no server of its gateways has any of the hosts %v", routing.Hosts),
				"add the hosts to a server of the gateway"))
		}
	}
	return inputs, problems
}

// redirects returns the server that redirects requests for a host to https, if any.
func (g *gatewayRoutes) redirects(host string) (server, bool) {
	for _, s := range g.servers {
		if s.spec.GetTls().GetHttpsRedirect() && slices.Contains(s.hostNames(), host) {
			return s, true
		}
	}
	return server{}, false
}

// reachedElsewhere reports whether a VirtualService has an effect through another server: one of
// its gateways has a server with one of its hosts.
func (g *gatewayRoutes) reachedElsewhere(v *ProxyView, routing *model.MergedVirtualService) bool {
	for _, o := range v.world.Gateways(v.node.Labels) {
		if !slices.Contains(routing.Gateways, o.Namespace+"/"+o.Name) {
			continue
		}
		for _, s := range serversOf(o) {
			if len(s.meet(routing)) > 0 {
				return true
			}
		}
	}
	return false
}
