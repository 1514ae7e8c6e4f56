package view

import (
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// httpProxy is an HTTP proxy of a sidecar: one listener and one route configuration for requests
// to all HTTP ports.
type httpProxy struct {
	model.HTTPProxy
	// holds the virtual hosts of the proxy's scope, by port; it publishes no listeners
	sidecar *sidecar
	dirty   bool
	listens bool
}

func (p *httpProxy) unit() string { return "httpproxy/" + p.Routes }

// replaceProxies replaces the HTTP proxies by those of the scope. The next update adds their
// virtual hosts.
func (s *sidecar) replaceProxies(v *ProxyView) {
	before := s.proxies
	s.proxies, s.proxyPort = nil, v.world.HTTPProxyPort(v.node)
	for _, proxy := range s.scope.HTTPProxies(v.world, v.node) {
		p := &httpProxy{HTTPProxy: proxy, sidecar: newSidecar(), dirty: true}
		p.sidecar.scope, p.sidecar.withPorts = proxy.Scope, true
		s.proxies = append(s.proxies, p)
	}
	for _, p := range before {
		if !slices.ContainsFunc(s.proxies, func(q *httpProxy) bool { return q.unit() == p.unit() }) {
			v.put(p.unit())
			v.report(p.unit(), nil)
		}
	}
}

// reconcile publishes the listener and the routes if they may have changed. s is the proxy's
// sidecar.
func (p *httpProxy) reconcile(v *ProxyView, s *sidecar) {
	dirty, resolve := p.dirty, s.scope.OutboundPolicy(v.world).DynamicDNS
	var hosts []*translate.VirtualHost
	var changed []resource.Origin
	at, _ := p.sidecar.bindAddress(v, p.Port)
	fallback := s.unknown(v, at)
	for _, number := range slices.Sorted(maps.Keys(p.sidecar.ports)) {
		of := p.sidecar.ports[number]
		dirty = dirty || of.listenerDirty || of.routesDirty
		of.listenerDirty, of.routesDirty = false, false
		changed, of.changed = append(changed, of.changed...), nil
		if len(of.members) == 0 && len(of.hosts) == 0 {
			delete(p.sidecar.ports, number)
			continue
		}
		for _, m := range of.members {
			resolve = resolve || m.port.IsDynamicDNS()
		}
		for _, host := range slices.Sorted(maps.Keys(of.hosts)) {
			hosts = append(hosts, of.hosts[host])
			if host == "*" && number == httpPort {
				// the domain * of this virtual host matches all other hosts, so there must be no
				// other fallback
				fallback = nil
			}
		}
	}
	if !dirty {
		return
	}
	p.dirty, p.listens = false, false
	for _, of := range s.ports {
		// a port without an HTTP listener reports hosts that no proxy routes, so it must check them
		// again
		of.routesDirty = of.routesDirty || !of.listens
	}
	listener, problems := p.listener(v, s, resolve)
	v.report(p.unit(), problems)
	if listener == nil {
		v.put(p.unit())
		return
	}
	p.listens = true
	v.put(p.unit(), listener, translate.RouteConfiguration(p.Routes, hosts, fallback, true, changed))
}

// routes reports whether the proxy listens, and has a virtual host for a host and port.
func (p *httpProxy) routes(port uint32, host string) bool {
	of := p.sidecar.ports[port]
	return p.listens && of != nil && of.hosts[host] != nil
}

// displaced returns a problem if a host's service has no listener because an HTTP proxy of the
// Sidecar listens on the service's port, and the HTTP proxy does not route to the service.
func (p *httpProxy) displaced(v *ProxyView, s *sidecar, host string) []object.Problem {
	service := s.scope.ImportedService(v.world, host)
	if p.OfMesh || service == nil { // the proxy of MeshConfig is reported as an address in use
		return nil
	}
	port := service.Port(p.Port)
	routed := slices.Contains(p.sidecar.members[host], p.Port)
	if port == nil || port.Protocol.MayBeHTTP() && routed || resolutionNone(port) &&
		!v.node.IsIntercepted() {
		return nil
	}
	by := s.scope.Object
	return []object.Problem{portProblem(member{service, port}, fmt.Sprintf(
		"nothing listens for host %s: port %d belongs to the HTTP proxy in egress[%d] of %s at %s", host,
		p.Port, p.Index, by.Key, by.Position()), "give the service or the proxy another port")}
}

// listener returns the listener of the proxy; nil if it has none.
func (p *httpProxy) listener(v *ProxyView, s *sidecar, resolve bool) (*resource.Resource,
	[]object.Problem) {
	at, problems := p.sidecar.bindAddress(v, p.Port)
	if at.address == "" {
		return nil, problems
	}
	by := s.otherUser(v, at, p.Port)
	if by == "" && !p.OfMesh {
		by = s.addressUser(v, at, p.Port)
	}
	if by != "" {
		return nil, []object.Problem{p.problem("port.number", fmt.Sprintf(
			"no HTTP proxy listens: %s:%d belongs to %s", at.address, p.Port, by),
			"give the proxy another port")}
	}
	problems = append(problems, p.sidecar.unresolved(v, at, p.Port)...)
	if at.isReachable() {
		problems = append(problems, p.problem("bind", fmt.Sprintf("whoever reaches %s:%d sends "+
			"requests with the identity of this host", at.address, p.Port), "write bind: 127.0.0.1"))
	}
	out := translate.OutboundListener{Address: at.address, Port: p.Port, Captured: at.captured,
		IPv6: v.node.IPv6, RouteConfig: p.Routes, ResolveHosts: resolve,
		FallbackCluster: s.fallback(v), Metrics: v.metrics(model.ClientMode),
		Extensions: v.guards.Extensions, Telemetry: v.telemetry.client}
	var origins []resource.Origin
	if o := p.Scope.Object; o != nil && !p.OfMesh {
		origins = append(origins, o.Origin())
	}
	listener, err := out.Listener(v.world.MeshConfig(), origins...)
	if err != nil {
		problems = append(problems, p.problem("port",
			"Envoy would refuse the listener: "+err.Error(), ""))
	}
	return listener, problems
}

// problem returns a warning about the proxy. field is that of a Sidecar's egress listener.
func (p *httpProxy) problem(field, message, fix string) object.Problem {
	if p.OfMesh {
		return object.Problem{Severity: condition.Warning, Field: "proxyHttpPort", Message: message,
			Fix: fix}
	}
	return p.Scope.Object.Warning(fmt.Sprintf("egress[%d].%s", p.Index, field), message, fix)
}
