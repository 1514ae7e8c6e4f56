package view

import (
	"bytes"
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// httpPort is the port on which hosts without a service are routed, as in Istio.
const httpPort = 80

// sidecar is the part of a view for sidecars: a listener for each port of the services, on the
// loopback or for captured connections, and the inbound traffic.
type sidecar struct {
	ports   map[uint32]*port
	hosts   map[string][]uint32 // ports that have a virtual host for a host
	members map[string][]uint32 // ports that have a service for a host
	readers readers
	scope   *model.SidecarScope
	inbound inbound
	proxies []*httpProxy

	proxyPort uint32 // result of model.Mesh.HTTPProxyPort
	withPorts bool   // ports share one route configuration, whose domains have the port

	reclustered map[string]struct{} // hosts whose clusters may have to be added or removed
}

func newSidecar() *sidecar {
	return &sidecar{reclustered: map[string]struct{}{}, inbound: newInbound(),
		ports: map[uint32]*port{}, hosts: map[string][]uint32{}, members: map[string][]uint32{},
		readers: newReaders()}
}

func (s *sidecar) port(number uint32) *port {
	p := s.ports[number]
	if p == nil {
		p = &port{number: number, members: map[string]member{},
			hosts:       map[string]*translate.VirtualHost{},
			connections: map[string]*translate.ConnectionRoutes{}}
		s.ports[number] = p
	}
	return p
}

func (s *sidecar) update(v *ProxyView, touched model.ChangeSummary) {
	touched = s.rescope(v, touched)
	s.read(telemetryReader, v.telemetry.reads())
	s.inbound.update(v, s.scope, touched)
	for _, p := range s.ports {
		p.listenerDirty = p.listenerDirty || v.guards.extended
	}
	for _, p := range s.proxies {
		p.dirty = p.dirty || v.guards.extended
	}
	hosts := make(map[string]struct{}, len(touched.ChangedHosts))
	for host := range touched.ChangedHosts {
		s.join(v, host)
		for _, p := range s.proxies {
			p.sidecar.join(v, host)
		}
		hosts[host] = struct{}{}
		for reader := range s.readers.of(host) {
			if reader != egressProxy && reader != telemetryReader {
				hosts[reader] = struct{}{}
			}
		}
	}
	var services []*model.Service
	for host := range touched.ChangedHosts {
		if service := s.scope.ImportedService(v.world, host); service != nil {
			services = append(services, service)
		}
	}
	wait := v.cache.prepare(v.world, v.node, services)
	defer wait() // also if the code below panics
	for host := range hosts {
		s.host(v, host)
	}
	// HTTP proxies are updated before the ports, because a port reports the hosts that no HTTP
	// proxy routes
	for _, p := range s.proxies {
		p.reconcile(v, s)
	}
	for number, p := range s.ports {
		p.reconcile(v, s)
		if len(p.members) == 0 && len(p.hosts) == 0 {
			delete(s.ports, number)
		}
	}
	wait()
	for host := range touched.ChangedHosts {
		v.clusters(host, s.service(v, host))
		delete(s.reclustered, host)
	}
	for host := range s.reclustered {
		v.clusters(host, s.service(v, host))
	}
	clear(s.reclustered)
	s.names(v, touched)
	v.report("authorizers", v.guards.hiddenAuthorizers(v.world, s.scope))
}

func (s *sidecar) relisten(v *ProxyView) {
	s.inbound.make(v, s.scope) // inbound listeners come first, because they reserve their addresses
	if s.proxyPort != v.world.HTTPProxyPort(v.node) {
		s.replaceProxies(v) // adds no hosts: the caller updates all hosts afterwards
	}
	for _, p := range s.proxies {
		p.dirty = true
		p.reconcile(v, s)
	}
	for _, p := range s.ports {
		p.listenerDirty, p.routesDirty = true, true
		p.reconcile(v, s)
	}
	s.capture(v)
}

// join updates the ports on which the scope imports a host's services.
func (s *sidecar) join(v *ProxyView, host string) {
	var now []uint32
	for number, service := range s.scope.ImportedPorts(v.world, host) {
		sp := service.Port(number)
		if resolutionNone(sp) && !v.node.IsIntercepted() {
			continue
		}
		now = append(now, number)
		p := s.port(number)
		before, known := p.members[host]
		p.members[host] = member{service: service, port: sp}
		// Most changes affect only endpoints and not the listener.
		p.listenerDirty = p.listenerDirty || !known || !before.listensLike(p.members[host])
	}
	slices.Sort(now)
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

// service returns the service for which a host has clusters: the imported one, else the one to
// which an imported VirtualService routes.
func (s *sidecar) service(v *ProxyView, host string) *model.Service {
	if found := s.scope.ImportedService(v.world, host); found != nil || len(s.readers.of(host)) == 0 {
		return found
	}
	return s.means(v, host)
}

// means returns the service of a destination's host: the imported one, else the one visible to the
// proxy's namespace.
func (s *sidecar) means(v *ProxyView, host string) *model.Service {
	if found := s.scope.ImportedService(v.world, host); found != nil {
		return found
	}
	return v.world.Service(host, v.node.Namespace)
}

// set stores a list of ports, or removes the key if the list is empty.
func set(lists map[string][]uint32, key string, list []uint32) {
	if len(list) == 0 {
		delete(lists, key)
		return
	}
	lists[key] = list
}

// set stores the virtual host of a host; nil removes it.
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
		// equal bytes may have other origins
		p.routesDirty = p.routesDirty || !slices.Equal(known.Origins, vh.Origins)
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
