package view

import (
	"bytes"
	"slices"

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
		p = &port{number: number, members: map[string]member{}, hosts: map[string]*translate.VirtualHost{},
			connections: map[string]*translate.Connections{}}
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
		s.host(v, host)
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
			delete(p.connections, host)
			p.listenerDirty = true
		}
	}
	set(s.members, host, now)
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
