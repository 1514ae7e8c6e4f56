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

// port is one port of the loopback: who is listened for, and what is done with requests.
type port struct {
	number      uint32
	members     map[string]member                 // by host
	connections map[string]*translate.Connections // of members that do not speak HTTP
	hosts       map[string]*translate.VirtualHost // of members that speak HTTP, and of VirtualServices alone
	order       []string                          // of hosts, sorted; nil if it has to be made anew

	listenerDirty, routesDirty bool
	listens                    bool              // there is an HTTP listener
	changed                    []resource.Origin // of virtual hosts since the routes were last made
}

// maxOrigins is up to how many hosts a listener names where all of them come from.
const maxOrigins = 100

type member struct {
	service *model.Service
	port    *model.Port
}

// class is what can share a listener.
func (m member) class() model.Protocol {
	if m.port.Protocol.IsHTTP() {
		return model.HTTP
	}
	return m.port.Protocol
}

// older orders members by the age of the object that gives the port, then by host.
func (m member) older(than member) bool {
	if c := object.Age(m.port.Object, than.port.Object); c != 0 {
		return c < 0
	}
	return m.service.Host < than.service.Host
}

// listensLike tells whether the other one, of the same host, has the same effect on the listener and what is told of it.
func (m member) listensLike(other member) bool {
	return m.port.Protocol == other.port.Protocol && object.Age(m.port.Object, other.port.Object) == 0 && m.port.Object.Key == other.port.Object.Key &&
		m.index() == other.index()
}

// index is the place of the port in its entry.
func (m member) index() int {
	return slices.IndexFunc(m.port.Entry.Ports, func(p *networking.ServicePort) bool { return p.Number == m.port.Number })
}

// settle makes anew what is dirty.
func (p *port) settle(v *View) {
	if p.listenerDirty {
		p.listenerDirty = false
		listened := p.listens
		p.listen(v)
		p.routesDirty = p.routesDirty || p.listens != listened || !p.listens
	}
	if p.routesDirty {
		p.routesDirty = false
		p.route(v)
	}
}

// listen chooses whose the listener is: the oldest member's, and all others' that can share it.
func (p *port) listen(v *View) {
	unit := fmt.Sprintf("listener/%d", p.number)
	p.listens = false
	if len(p.members) == 0 {
		v.put(unit)
		v.tell(unit, nil)
		return
	}
	members := slices.SortedFunc(maps.Values(p.members), func(a, b member) int {
		if a.older(b) {
			return -1
		}
		return 1
	})
	oldest := members[0]
	class := oldest.class()
	var problems []object.Problem
	var claims translate.Claims
	origins := []resource.Origin{oldest.port.Object.Origin()}
	for _, m := range members {
		host := m.service.Host
		switch {
		case m.class() != class, class == model.TCP && m != oldest:
			problems = append(problems, p.conflict(m, oldest))
		case class == model.HTTP:
		default:
			problems = append(problems, claims.Take(p.connections[host].Routes)...)
			if len(members) <= maxOrigins {
				origins = append(origins, p.connections[host].Origins()...)
			}
		}
	}
	var listener *resource.Resource
	var err error
	switch {
	case class == model.HTTP:
		listener, err = translate.HTTPListener(p.number, v.world.Mesh(), origins...)
		p.listens = err == nil
	case len(claims.Routes) > 0:
		listener, err = translate.ConnectionListener(p.number, claims.Routes, class == model.TLS, v.world.Mesh(), origins...)
	}
	if err != nil {
		problems = append(problems, portProblem(oldest, "Envoy would refuse the listener: "+err.Error(), ""))
	}
	v.put(unit, listener)
	v.tell(unit, dedupe(problems))
}

func (p *port) conflict(m, oldest member) object.Problem {
	return portProblem(m, fmt.Sprintf("nothing listens for host %s: 127.0.0.1:%d belongs to host %s of %s:%d, which is older",
		m.service.Host, p.number, oldest.service.Host, oldest.port.Object.File, oldest.port.Object.Line),
		"without interception a port is HTTP for all its hosts, TLS for all, or TCP for one; give the service another port")
}

func portProblem(m member, message, cure string) object.Problem {
	return m.port.Object.Problem(object.Finding{Field: fmt.Sprintf("ports[%d]", m.index()), Severity: condition.Warning, Message: message, Cure: cure})
}

// route puts the route configuration together.
func (p *port) route(v *View) {
	unit := fmt.Sprintf("route/%d", p.number)
	if !p.listens {
		v.put(unit)
		v.tell(unit, p.unreachable())
		return
	}
	if p.order == nil {
		p.order = slices.Sorted(maps.Keys(p.hosts))
	}
	hosts := make([]*translate.VirtualHost, 0, len(p.order))
	fallback := translate.BlockAll()
	for _, host := range p.order {
		hosts = append(hosts, p.hosts[host])
		if host == "*" {
			fallback = nil
		}
	}
	v.put(unit, translate.RouteConfiguration(fmt.Sprint(p.number), hosts, fallback, p.changed))
	v.tell(unit, nil)
	p.changed = nil
}

// unreachable tells of VirtualServices whose hosts nothing listens for.
func (p *port) unreachable() []object.Problem {
	var problems []object.Problem
	for host, vh := range p.hosts {
		if _, ok := p.members[host]; ok {
			continue // told as a conflict
		}
		for _, o := range vh.Origins {
			problems = append(problems, object.Problem{File: o.File, Line: o.Line, Object: fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name), Field: "spec.hosts",
				Severity: condition.Warning, Message: fmt.Sprintf("host %s is no service's, and no HTTP service has port %d: nothing listens for it", host, p.number),
				Cure: "add a ServiceEntry for the host"})
		}
	}
	return dedupe(problems)
}
