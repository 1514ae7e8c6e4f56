package view

import (
	"fmt"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// port is one outbound port, with its listeners and its route configuration.
type port struct {
	number  uint32
	members map[string]member // services on the port, by host
	// routing of connections for members without HTTP
	connections map[string]*translate.ConnectionRoutes
	// hosts has the virtual hosts of services (members) with HTTP, and of hosts without a service.
	hosts map[string]*translate.VirtualHost
	order []string // sorted keys of hosts; nil: must be built again

	listenerDirty, routesDirty bool
	listens                    bool // the port has an HTTP listener
	// origins of virtual hosts that changed since the last publication
	changed []resource.Origin
}

// maxOrigins is the maximum number of services for which a listener lists all origins.
const maxOrigins = 100

type member struct {
	service *model.Service
	port    *model.Port
}

// class returns the protocol class. Members of the same class can share a listener.
func (m member) class() model.Protocol {
	if m.port.Protocol.MayBeHTTP() {
		return model.HTTP
	}
	return m.port.Protocol
}

// older reports whether a member precedes another: by the age of the object that has the port, then
// by host.
func (m member) older(than member) bool {
	if c := object.CompareAge(m.port.Object, than.port.Object); c != 0 {
		return c < 0
	}
	return m.service.Host < than.service.Host
}

// listensLike reports whether replacing a member by another one of the same host changes neither
// the listener nor the problems.
func (m member) listensLike(other member) bool {
	return m.port.Protocol == other.port.Protocol && slices.Equal(m.port.Entry.Addresses,
		other.port.Entry.Addresses) && object.CompareAge(m.port.Object, other.port.Object) == 0 &&
		m.port.Object.Key == other.port.Object.Key &&
		m.port.IsDynamicDNS() == other.port.IsDynamicDNS() &&
		m.index() == other.index()
}

// index returns the index of the port in its ServiceEntry.
func (m member) index() int {
	return slices.IndexFunc(m.port.Entry.Ports, func(p *networking.ServicePort) bool {
		return p.Number == m.port.Number
	})
}

// reconcile publishes listeners and routes that must change.
func (p *port) reconcile(v *ProxyView, s *sidecar) {
	if p.listenerDirty {
		p.listenerDirty = false
		listened := p.listens
		p.listen(v, s)
		p.routesDirty = p.routesDirty || p.listens != listened || !p.listens
	}
	if p.routesDirty {
		p.routesDirty = false
		p.route(v, s)
	}
}

// listen publishes the listeners of the port: a common one, and, with interception, one for each
// address of a member that requests cannot identify by their host.
func (p *port) listen(v *ProxyView, s *sidecar) {
	unit := fmt.Sprintf("listener/%d", p.number)
	p.listens = false
	var problems []object.Problem
	var listeners []*resource.Resource
	at, found := s.bindAddress(v, p.number)
	if len(p.members) > 0 {
		problems = append(problems, found...)
		problems = append(problems, p.otherProtocol(s.scope)...)
	}
	if at.address != "" {
		for _, group := range p.groups(at) {
			if by := s.addressUser(v, group.bindAddress, p.number); by != "" {
				problems = append(problems, group.addressInUse(p.number, by)...)
				continue
			}
			listener, found := p.listener(v, s, group)
			listeners, problems = append(listeners, listener), append(problems, found...)
		}
	}
	if p.listens {
		problems = append(problems, s.unresolved(v, at, p.number)...)
	}
	v.put(unit, listeners...)
	v.report(unit, dedupe(problems))
}

// listener returns the listener of a group, with the members that share it. The oldest member
// determines the protocol; members that are not compatible with it are left out and reported.
func (p *port) listener(v *ProxyView, s *sidecar, l listenerGroup) (*resource.Resource,
	[]object.Problem) {
	oldest := l.members[0]
	class := oldest.class()
	out := translate.OutboundListener{Address: l.address, Port: p.number, Captured: l.captured,
		IPv6: v.node.IPv6, FallbackCluster: s.fallback(v), Metrics: v.metrics(model.ClientMode),
		Extensions: v.guards.Extensions, Telemetry: v.telemetry.client,
		ResolveHosts: s.scope.OutboundPolicy(v.world).DynamicDNS}
	var problems []object.Problem
	var claims translate.FilterChainMatches
	var connected *member // the oldest member whose routes match all connections
	origins := []resource.Origin{oldest.port.Object.Origin()}
	for i, m := range l.members {
		blocks := m.blocks(l.bindAddress)
		switch {
		case m.class() != class, class == model.TCP && connected != nil && len(blocks) == 0:
			problems = append(problems, p.conflict(l, m, oldest))
			continue
		case class == model.HTTP:
			out.RouteConfig = fmt.Sprint(p.number)
			out.ResolveHosts = out.ResolveHosts || m.port.IsDynamicDNS()
			if m.port.Protocol != model.AutoProtocol || connected != nil {
				continue
			}
			out.DetectHTTP = true
		}
		if class != model.TLS && len(blocks) == 0 {
			connected = &l.members[i]
		}
		connections := p.connections[m.service.Host]
		problems = append(problems, claims.Add(within(connections.Routes, blocks))...)
		if len(l.members) <= maxOrigins {
			origins = append(origins, connections.Origins()...)
		}
	}
	out.Connections = claims.Routes
	if out.RouteConfig == "" && len(out.Connections) == 0 {
		return nil, problems
	}
	listener, err := out.Listener(v.world.MeshConfig(), origins...)
	if err != nil {
		return nil, append(problems, portProblem(oldest,
			"Envoy would refuse the listener: "+err.Error(), ""))
	}
	p.listens = p.listens || out.RouteConfig != ""
	return listener, problems
}

func (p *port) conflict(l listenerGroup, m, oldest member) object.Problem {
	fix := "without interception a port is HTTP for all its hosts, TLS for all, or TCP for one; " +
		"give the service another port"
	if l.captured {
		fix = "give the service an address of its own, or another port"
	}
	return portProblem(m,
		fmt.Sprintf("nothing listens for host %s: %s:%d belongs to host %s of %s, which is "+
			"older", m.service.Host, l.address, p.number, oldest.service.Host,
			oldest.port.Object.Position()), fix)
}

// otherProtocol reports a Sidecar whose protocol for the port differs from that of the services.
func (p *port) otherProtocol(scope *model.SidecarScope) []object.Problem {
	e := scope.EgressListener(p.number)
	says, ok := model.ParseProtocol(e.GetProtocol(), "")
	if !ok || says == model.AutoProtocol {
		return nil
	}
	var first *member
	for _, m := range p.members {
		if m.class() != (member{port: &model.Port{Protocol: says}}).class() &&
			(first == nil || m.older(*first)) {
			first = &m
		}
	}
	if first == nil {
		return nil
	}
	return []object.Problem{
		scope.Object.Warning(fmt.Sprintf("egress[%d].port.protocol", e.Index), fmt.Sprintf(
			"%s has no effect: port %d of host %s is given another protocol at %s, which "+
				"counts", e.GetProtocol(), p.number, first.service.Host,
			first.port.Object.Position()), "write the same protocol in both")}
}

func portProblem(m member, message, fix string) object.Problem {
	return m.port.Object.Warning(fmt.Sprintf("ports[%d]", m.index()), message, fix)
}

// route publishes the route configuration of the port.
func (p *port) route(v *ProxyView, s *sidecar) {
	unit := fmt.Sprintf("route/%d", p.number)
	if !p.listens {
		v.put(unit)
		v.report(unit, p.unreachable(s))
		return
	}
	if p.order == nil {
		p.order = slices.Sorted(maps.Keys(p.hosts))
	}
	hosts := make([]*translate.VirtualHost, 0, len(p.order))
	at, _ := s.bindAddress(v, p.number)
	fallback := s.unknown(v, at)
	for _, host := range p.order {
		hosts = append(hosts, p.hosts[host])
		if host == "*" {
			fallback = nil
		}
	}
	v.put(unit, translate.RouteConfiguration(fmt.Sprint(p.number), hosts, fallback, false, p.changed))
	v.report(unit, nil)
	p.changed = nil
}

// unreachable reports VirtualServices without effect: the port has no HTTP listener, and no HTTP
// proxy routes their hosts.
func (p *port) unreachable(s *sidecar) []object.Problem {
	var problems []object.Problem
	for host, vh := range p.hosts {
		if _, ok := p.members[host]; ok {
			continue // the conflict with another service was reported
		}
		if slices.ContainsFunc(s.proxies, func(q *httpProxy) bool { return q.routes(p.number, host) }) {
			continue
		}
		for _, o := range vh.Origins {
			problem := object.ProblemAt(o, condition.Warning, fmt.Sprintf(
				"host %s has no service, and no HTTP service has port %d: nothing listens for it",
				host, p.number), "add a ServiceEntry for the host")
			problem.Field = "spec.hosts"
			problems = append(problems, problem)
		}
	}
	return dedupe(problems)
}
