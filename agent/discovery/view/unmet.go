package view

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// unmet reports VirtualServices with tcp or tls routes that no server of this proxy's Gateways can
// use.
func (r *router) unmet(v *ProxyView) {
	servers := map[string][]server{} // servers by the name of their Gateway
	for _, o := range v.world.Gateways(v.node.Labels) {
		servers[o.Namespace+"/"+o.Name] = serversOf(o)
	}
	var problems []object.Problem
	for _, gateway := range v.world.RoutedGateways() {
		for _, routing := range v.world.GatewayVirtualServices(gateway, v.node.Namespace) {
			takes := func(wanted func(server) bool) bool {
				return slices.ContainsFunc(routing.Gateways, func(name string) bool {
					return name == model.MeshGateway || v.world.HasGateway(name) &&
						servers[name] == nil ||
						slices.ContainsFunc(servers[name], func(s server) bool {
							return wanted(s) &&
								len(s.meet(routing)) > 0
						})
				})
			}
			if len(routing.Spec.Tcp) > 0 &&
				!takes(func(s server) bool { return !s.isPassthrough() && !s.routesRequests() }) {
				problems = append(problems, unmet(routing, "tcp", "TCP, or TLS that is ended,"))
			}
			if len(routing.Spec.Tls) > 0 && !takes(func(s server) bool { return s.isPassthrough() && !s.isAuto() }) {
				problems = append(problems, unmet(routing, "tls", "TLS with mode PASSTHROUGH"))
			}
		}
	}
	v.report("unmet", dedupe(problems))
}

func unmet(routing *model.MergedVirtualService, field, server string) object.Problem {
	return routing.Object.Warning(field,
		fmt.Sprintf("no server of its gateways speaks %s for any of the hosts %v", server,
			routing.Hosts), "add such a server to the gateway, or write http")
}
