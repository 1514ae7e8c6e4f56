package view

import (
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// host translates what requests and connections to a host meet at each port it has.
func (s *sidecar) host(v *View, host string) {
	service := v.world.Service(host, v.node.Namespace)
	reads := map[string]struct{}{}
	problems := append(s.requests(v, host, service, reads), s.connections(v, host, service, reads)...)
	delete(reads, host)
	s.readers.set(host, reads)
	v.tell("host/"+host, dedupe(problems))
}

// outbound translates for a port of this sidecar.
func outbound(v *View, port uint32) *translate.Router {
	return &translate.Router{World: v.world, Node: v.node, Gateway: []string{model.MeshGateway}, Port: port}
}

// requests makes the host's virtual hosts.
func (s *sidecar) requests(v *View, host string, service *model.Service, reads map[string]struct{}) []object.Problem {
	var problems []object.Problem
	var now []uint32
	routings := slices.DeleteFunc(v.world.Requests(host, v.node.Namespace), func(r *model.Routing) bool { return !routesHTTP(r) })
	counts := map[*model.Routing]bool{}
	wanted := s.wanted(v, host, service, routings, reads)
	for _, number := range slices.Sorted(maps.Keys(wanted)) {
		vh, routing := outbound(v, number).ServiceVirtualHost(host, service, wanted[number])
		if vh == nil {
			continue
		}
		now = append(now, number)
		s.port(number).set(host, vh)
		counts[routing] = true
		problems = append(problems, vh.Problems...)
		for _, read := range vh.Reads {
			reads[read] = struct{}{}
		}
	}
	for _, number := range s.hosts[host] {
		if !slices.Contains(now, number) {
			s.port(number).set(host, nil)
		}
	}
	set(s.hosts, host, now)
	if len(now) == 0 && service == nil && len(wanted) > 0 {
		problems = append(problems, routings[0].Object.Problem(object.Finding{Field: "hosts", Severity: condition.Warning,
			Message: fmt.Sprintf("no service has the host %s, and no route is for requests to it here", host), Cure: "add a ServiceEntry for the host"}))
	}
	for i, r := range routings {
		if i > 0 && len(now) > 0 && !counts[r] {
			by := routings[0].Object
			problems = append(problems, r.Object.Problem(object.Finding{Field: "hosts", Severity: condition.Warning,
				Message: fmt.Sprintf("requests to %s are routed by %s at %s:%d, which is older and counts", host, by.Key, by.File, by.Line),
				Cure:    "put the routes into one VirtualService"}))
		}
	}
	return problems
}

// wanted are the ports at which a host has a virtual host, and which VirtualServices may decide there: the HTTP ports of its
// service; of a host that only a VirtualService knows those of the services beside it there, else 80.
func (s *sidecar) wanted(v *View, host string, service *model.Service, routings []*model.Routing, reads map[string]struct{}) map[uint32][]*model.Routing {
	ports := map[uint32][]*model.Routing{}
	if service != nil {
		for _, number := range httpPorts(service) {
			ports[number] = routings
		}
		return ports
	}
	if model.IsWildcard(host) && v.world.HasServiceLike(host) {
		return ports
	}
	for _, routing := range routings {
		if !slices.Contains(routing.Hosts, host) {
			continue
		}
		numbers := map[uint32]struct{}{}
		for _, beside := range routing.Hosts {
			reads[beside] = struct{}{}
			if service := v.world.Service(beside, v.node.Namespace); service != nil {
				for _, number := range httpPorts(service) {
					numbers[number] = struct{}{}
				}
			}
		}
		if len(numbers) == 0 {
			numbers[httpPort] = struct{}{}
		}
		for number := range numbers {
			ports[number] = append(ports[number], routing)
		}
	}
	return ports
}

func httpPorts(service *model.Service) []uint32 {
	var ports []uint32
	for i := range service.Ports {
		if p := &service.Ports[i]; p.Protocol.IsHTTP() && !resolutionNone(p) {
			ports = append(ports, p.Number)
		}
	}
	return ports
}

// connections makes what is done with connections to the host's ports that do not speak HTTP.
func (s *sidecar) connections(v *View, host string, service *model.Service, reads map[string]struct{}) []object.Problem {
	routings := v.world.Connections(host, v.node.Namespace)
	var problems []object.Problem
	if service == nil {
		if !v.world.IsReached(host) {
			for _, r := range routings {
				if field := saysOfConnections(r); field != "" && slices.Contains(r.Hosts, host) {
					problems = append(problems, r.Object.Problem(object.Finding{Field: field, Severity: condition.Warning,
						Message: fmt.Sprintf("no service has the host %s: nothing listens for connections to it", host), Cure: "add a ServiceEntry for the host"}))
				}
			}
		}
		return problems
	}
	speaks := map[string]bool{} // which parts of a VirtualService the service's ports need
	for i := range service.Ports {
		sp := &service.Ports[i]
		switch {
		case sp.Protocol.IsHTTP():
			speaks["http"] = true
		case sp.Protocol == model.TLS:
			speaks["tls"] = true
		default:
			speaks["tcp"] = true
		}
		p := s.port(sp.Number)
		if sp.Protocol.IsHTTP() || resolutionNone(sp) {
			delete(p.connections, host)
			continue
		}
		made := outbound(v, sp.Number).ServiceConnections(service, sp, routings)
		p.listenerDirty = p.listenerDirty || !p.connections[host].Equal(made)
		p.connections[host] = made
		problems = append(problems, made.Problems...)
		for _, read := range made.Reads {
			reads[read] = struct{}{}
		}
	}
	for _, r := range routings {
		for field, says := range map[string]bool{"http": len(r.Spec.Http) > 0, "tls": len(r.Spec.Tls) > 0, "tcp": len(r.Spec.Tcp) > 0} {
			if says && !speaks[field] && slices.Contains(r.Hosts, host) {
				problems = append(problems, r.Object.Problem(object.Finding{Field: field, Severity: condition.Warning,
					Message: fmt.Sprintf("has no effect for %s: no port of its service speaks %s", host, map[string]string{"http": "HTTP", "tls": "TLS", "tcp": "TCP"}[field]),
					Cure:    "http counts for HTTP, HTTP2 and GRPC ports, tls for TLS and HTTPS ones, tcp for all others"}))
			}
		}
	}
	return problems
}

// saysOfConnections is the field in which a VirtualService says something of connections, "" if in none.
func saysOfConnections(r *model.Routing) string {
	switch {
	case len(r.Spec.Tls) > 0:
		return "tls"
	case len(r.Spec.Tcp) > 0:
		return "tcp"
	}
	return ""
}
