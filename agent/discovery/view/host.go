package view

import (
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// host updates the routing of requests and connections to a host, on each of its ports.
func (s *sidecar) host(v *ProxyView, host string) {
	reads := map[string]struct{}{}
	problems := append(s.requests(v, host, reads), s.connections(v, host, reads)...)
	for _, p := range s.proxies {
		problems = append(problems, p.sidecar.requests(v, host, reads)...)
		problems = append(problems, p.displaced(v, s, host)...)
	}
	delete(reads, host)
	s.read(host, reads)
	v.report("host/"+host, dedupe(problems))
}

// read records the hosts on which the translation of a host depends. Such hosts get clusters even
// outside the Sidecar's scope.
func (s *sidecar) read(host string, reads map[string]struct{}) {
	if s.scope.RestrictsEgress() {
		for read := range s.readers.byReader[host] {
			s.reclustered[read] = struct{}{}
		}
		for read := range reads {
			s.reclustered[read] = struct{}{}
		}
	}
	s.readers.set(host, reads)
}

// outbound returns a RouteTranslator for an outbound port of the sidecar.
func (s *sidecar) outbound(v *ProxyView, port uint32) *translate.RouteTranslator {
	return &translate.RouteTranslator{Mesh: v.world, Node: v.node,
		Gateways: []string{model.MeshGateway},
		Port:     port, DomainsWithPorts: s.withPorts,
		VisibleService:        func(host string) *model.Service { return s.means(v, host) },
		ServiceOnSameListener: func(host string) *model.Service { return s.port(port).members[host].service },
		HasOwnVirtualService:  func(host string) bool { return s.named(v, host, port) }}
}

// named reports whether a VirtualService for requests to a port has the host itself in its hosts,
// not only a pattern.
func (s *sidecar) named(v *ProxyView, host string, port uint32) bool {
	e := s.scope.EgressListener(port)
	return e != nil && slices.ContainsFunc(e.HTTPVirtualServices(v.world, host),
		func(r *model.MergedVirtualService) bool {
			return routesHTTP(r) && slices.Contains(r.Hosts, host)
		})
}

// requests updates the host's virtual hosts, and returns the problems found.
func (s *sidecar) requests(v *ProxyView, host string, reads map[string]struct{}) []object.Problem {
	var problems []object.Problem
	var now []uint32
	counts := map[*model.MergedVirtualService]bool{}
	wanted, routings := s.wanted(v, host, reads)
	for _, number := range slices.Sorted(maps.Keys(wanted)) {
		vh, routing := s.outbound(v, number).ServiceVirtualHost(host,
			s.port(number).members[host].service, wanted[number])
		if vh == nil {
			continue
		}
		now = append(now, number)
		s.port(number).set(host, vh)
		counts[routing] = true
		problems = append(problems, vh.Problems...)
		for _, read := range vh.HostsRead {
			reads[read] = struct{}{}
		}
	}
	for _, number := range s.hosts[host] {
		if !slices.Contains(now, number) {
			s.port(number).set(host, nil)
		}
	}
	set(s.hosts, host, now)
	if len(now) == 0 && len(wanted) > 0 && v.world.Service(host, v.node.Namespace) == nil {
		problems = append(problems, routings[0].Object.Warning("hosts", fmt.Sprintf(
			"no service has the host %s, and no route is for requests to it here", host),
			"add a ServiceEntry for the host"))
	}
	for i, r := range routings {
		if i > 0 && len(now) > 0 && !counts[r] {
			by := routings[0].Object
			problems = append(problems, r.Object.Warning("hosts", fmt.Sprintf(
				"requests to %s are routed by %s at %s, which is older and takes precedence",
				host, by.Key, by.Position()), "put the routes into one VirtualService"))
		}
	}
	return problems
}

// wanted returns the ports on which a host has a virtual host, with the VirtualServices that may
// apply on each, and the VirtualServices of all listeners. The ports are the HTTP ports of the
// host's service; without a service, they are those that beside returns.
func (s *sidecar) wanted(v *ProxyView, host string,
	reads map[string]struct{}) (map[uint32][]*model.MergedVirtualService, []*model.MergedVirtualService) {
	ports := map[uint32][]*model.MergedVirtualService{}
	known := map[*model.EgressListener][]*model.MergedVirtualService{}
	var all []*model.MergedVirtualService
	routings := func(e *model.EgressListener) []*model.MergedVirtualService {
		found, ok := known[e]
		if !ok {
			found = slices.DeleteFunc(e.HTTPVirtualServices(v.world, host),
				func(r *model.MergedVirtualService) bool {
					return !routesHTTP(r)
				})
			known[e] = found
			for _, r := range found {
				if !slices.Contains(all, r) {
					all = append(all, r)
				}
			}
		}
		return found
	}
	if numbers := s.members[host]; len(numbers) > 0 {
		for _, number := range numbers {
			if s.port(number).members[host].port.Protocol.MayBeHTTP() {
				ports[number] = routings(s.scope.EgressListener(number))
			}
		}
		return ports, all
	}
	if model.IsWildcard(host) && s.scope.HasMatchingService(v.world, host) {
		return ports, nil
	}
	for _, e := range s.scope.EgressListeners() {
		for _, routing := range routings(e) {
			if slices.Contains(routing.Hosts, host) {
				for number := range s.beside(routing, e, reads) {
					ports[number] = append(ports[number], routing)
				}
			}
		}
	}
	// Without a service, the host gets no virtual host for VirtualServices that match it only by a
	// pattern.
	return ports, slices.DeleteFunc(all, func(r *model.MergedVirtualService) bool {
		return !slices.Contains(r.Hosts, host)
	})
}

// beside returns the ports on which an egress listener routes requests to a host without a service:
// the HTTP ports of services for other hosts of the same VirtualService. If there are none, it
// returns the port of the egress listener, or httpPort.
func (s *sidecar) beside(routing *model.MergedVirtualService, e *model.EgressListener,
	reads map[string]struct{}) map[uint32]struct{} {
	numbers := map[uint32]struct{}{}
	for _, host := range routing.Hosts {
		reads[host] = struct{}{}
		for _, number := range s.members[host] {
			if s.scope.EgressListener(number) == e &&
				s.port(number).members[host].port.Protocol.MayBeHTTP() {
				numbers[number] = struct{}{}
			}
		}
	}
	if own := e.Spec.GetPort().GetNumber(); len(numbers) == 0 && own != 0 {
		numbers[own] = struct{}{}
	} else if len(numbers) == 0 && s.scope.EgressListener(httpPort) == e {
		numbers[httpPort] = struct{}{}
	}
	return numbers
}

// connections updates the routing of connections to the host's ports that are not parsed as HTTP.
func (s *sidecar) connections(v *ProxyView, host string,
	reads map[string]struct{}) []object.Problem {
	var problems []object.Problem
	if len(s.members[host]) == 0 {
		if !v.world.HasOverlappingService(host) && v.world.Service(host, v.node.Namespace) == nil {
			for _, r := range v.world.TCPVirtualServices(host, v.node.Namespace) {
				if field := connectionField(r); field != "" && slices.Contains(r.Hosts, host) {
					problems = append(problems, r.Object.Warning(field, fmt.Sprintf(
						"no service has the host %s: nothing listens for connections to it", host),
						"add a ServiceEntry for the host"))
				}
			}
		}
		return problems
	}
	// fields of a VirtualService, tls or tcp, that apply to the service's ports
	speaks := map[string]bool{}
	var routings []*model.MergedVirtualService // VirtualServices of all egress listeners
	for _, number := range s.members[host] {
		p := s.port(number)
		sp := p.members[host].port
		switch {
		case sp.Protocol == model.AutoProtocol:
			speaks["http"], speaks["tcp"] = true, true
		case sp.Protocol.IsHTTP():
			speaks["http"] = true
		case sp.Protocol == model.TLS:
			speaks["tls"] = true
		default:
			speaks["tcp"] = true
		}
		deciding := s.scope.EgressListener(number).TCPVirtualServices(v.world, host)
		for _, r := range deciding {
			if !slices.Contains(routings, r) {
				routings = append(routings, r)
			}
		}
		if sp.Protocol.IsHTTP() {
			delete(p.connections, host)
			continue
		}
		made := s.outbound(v, sp.Number).ServiceConnectionRoutes(p.members[host].service, sp,
			deciding)
		p.listenerDirty = p.listenerDirty || !p.connections[host].Equal(made)
		p.connections[host] = made
		problems = append(problems, made.Problems...)
		for _, read := range made.HostsRead {
			reads[read] = struct{}{}
		}
	}
	for _, r := range routings {
		for field, says := range map[string]bool{"http": len(r.Spec.Http) > 0,
			"tls": len(r.Spec.Tls) > 0, "tcp": len(r.Spec.Tcp) > 0} {
			if says && !speaks[field] && slices.Contains(r.Hosts, host) {
				problems = append(problems, r.Object.Warning(field, fmt.Sprintf(
					"has no effect for %s: no port of its service speaks %s", host,
					map[string]string{"http": "HTTP", "tls": "TLS", "tcp": "TCP"}[field]),
					"http counts for HTTP, HTTP2 and GRPC ports, tls for TLS and HTTPS "+
						"ones, tcp for all others"))
			}
		}
	}
	return problems
}

// connectionField returns the field, tls or tcp, in which a VirtualService routes connections; ""
// if it routes none.
func connectionField(r *model.MergedVirtualService) string {
	switch {
	case len(r.Spec.Tls) > 0:
		return "tls"
	case len(r.Spec.Tcp) > 0:
		return "tcp"
	}
	return ""
}
