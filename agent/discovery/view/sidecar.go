package view

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// httpPort is where a host that only VirtualServices know is reached, as in Istio.
const httpPort = 80

// sidecar is the view of sidecars without interception: a listener on the loopback for every port that services have.
type sidecar struct {
	ports   map[uint32]*port
	hosts   map[string][]uint32 // the ports at which a host has a virtual host
	members map[string][]uint32 // the ports at which a host has a service
	readers readers
}

func newSidecar() *sidecar {
	return &sidecar{ports: map[uint32]*port{}, hosts: map[string][]uint32{}, members: map[string][]uint32{}, readers: newReaders()}
}

func (s *sidecar) port(number uint32) *port {
	p := s.ports[number]
	if p == nil {
		p = &port{number: number, members: map[string]member{}, hosts: map[string]*translate.VirtualHost{}}
		s.ports[number] = p
	}
	return p
}

func (s *sidecar) update(v *View, touched model.Touched) {
	hosts := make(map[string]struct{}, len(touched.Hosts))
	for host := range touched.Hosts {
		s.join(host, v.world.Service(host, v.node.Namespace))
		hosts[host] = struct{}{}
		for reader := range s.readers.of(host) {
			hosts[reader] = struct{}{}
		}
	}
	for host := range hosts {
		s.virtualHosts(v, host)
	}
	for number, p := range s.ports {
		p.settle(v)
		if len(p.members) == 0 && len(p.hosts) == 0 {
			delete(s.ports, number)
		}
	}
}

func (s *sidecar) relisten(v *View) {
	for _, p := range s.ports {
		p.listenerDirty = true
		p.settle(v)
	}
}

// join makes a service (nil: none) a member of its ports.
func (s *sidecar) join(host string, service *model.Service) {
	var now []uint32
	if service != nil {
		for i := range service.Ports {
			if sp := &service.Ports[i]; !resolutionNone(sp) {
				now = append(now, sp.Number)
				p := s.port(sp.Number)
				before, known := p.members[host]
				p.members[host] = member{service: service, port: sp}
				// Most changes are of endpoints, and leave whose the listener is as it was.
				p.listenerDirty = p.listenerDirty || !known || !before.listensLike(p.members[host])
			}
		}
	}
	for _, number := range s.members[host] {
		if !slices.Contains(now, number) {
			p := s.port(number)
			delete(p.members, host)
			p.listenerDirty = true
		}
	}
	set(s.members, host, now)
}

// virtualHosts translates what requests to a host meet at each port it has.
func (s *sidecar) virtualHosts(v *View, host string) {
	service := v.world.Service(host, v.node.Namespace)
	routing := v.world.Routing(host, v.node.Namespace)
	if !routesHTTP(routing) {
		routing = nil
	}
	reads := map[string]struct{}{}
	var problems []object.Problem
	var now []uint32
	for _, number := range s.wanted(v, host, service, routing, reads) {
		now = append(now, number)
		router := &translate.Router{World: v.world, Node: v.node, Gateway: []string{model.MeshGateway}, Port: number}
		vh := router.ServiceVirtualHost(host, service, routing)
		s.port(number).set(host, vh)
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
	delete(reads, host)
	s.readers.set(host, reads)
	if len(now) > 0 {
		by, shadowed := v.world.Shadowed(host, v.node.Namespace)
		for _, r := range shadowed {
			problems = append(problems, r.Object.Problem(object.Finding{Field: "hosts", Severity: condition.Warning,
				Message: fmt.Sprintf("requests to %s are routed by %s at %s:%d, which is older and counts", host, by.Object.Key, by.Object.File, by.Object.Line),
				Cure:    "put the routes into one VirtualService"}))
		}
	}
	v.tell("host/"+host, dedupe(problems))
}

// wanted are the ports at which a host has a virtual host: the HTTP ports of its service; of a host that only a
// VirtualService knows those of the services beside it there, else 80.
func (s *sidecar) wanted(v *View, host string, service *model.Service, routing *model.Routing, reads map[string]struct{}) []uint32 {
	ports := map[uint32]struct{}{}
	collect := func(service *model.Service) {
		for i := range service.Ports {
			if p := &service.Ports[i]; p.Protocol.IsHTTP() && !resolutionNone(p) {
				ports[p.Number] = struct{}{}
			}
		}
	}
	switch {
	case service != nil:
		collect(service)
	case routing == nil || !slices.Contains(routing.Hosts, host), model.IsWildcard(host) && v.world.HasServiceLike(host):
		return nil
	default:
		for _, beside := range routing.Hosts {
			reads[beside] = struct{}{}
			if service := v.world.Service(beside, v.node.Namespace); service != nil {
				collect(service)
			}
		}
		if len(ports) == 0 {
			ports[httpPort] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(ports))
}

// set keeps only lists that hold something.
func set(lists map[string][]uint32, key string, list []uint32) {
	if len(list) == 0 {
		delete(lists, key)
		return
	}
	lists[key] = list
}

// set makes vh (nil: none) the virtual host of a host.
func (p *port) set(host string, vh *translate.VirtualHost) {
	known := p.hosts[host]
	switch {
	case vh == nil || vh.Encoded == nil:
		if known != nil {
			delete(p.hosts, host)
			p.order, p.routesDirty = nil, true
		}
		return
	case known == nil:
		p.order = nil
	case bytes.Equal(known.Encoded, vh.Encoded):
		p.hosts[host] = vh
		p.routesDirty = p.routesDirty || !slices.Equal(known.Origins, vh.Origins) // moved: nothing to send, but to tell
		return
	}
	p.hosts[host] = vh
	p.routesDirty = true
	p.changed = append(p.changed, vh.Origins...)
}

func dedupe(problems []object.Problem) []object.Problem {
	slices.SortFunc(problems, object.Problem.Compare)
	return slices.Compact(problems)
}
