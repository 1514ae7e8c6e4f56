package view

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// gatewayListener is a listener of a gateway, shared by all servers on its address and port.
type gatewayListener struct {
	bind    string
	port    uint32
	servers []server            // servers of one protocol class, oldest first
	names   map[string]server   // server that terminates TLS, by SNI
	reads   map[string]struct{} // hosts on which the filter chains depend
	dirty   bool                // servers were added or removed
	auto    autoPassthrough
}

// join adds a server to the listener. It returns a problem if the server is not compatible with
// those that joined before.
func (l *gatewayListener) join(s server) *object.Problem {
	refuse := func(field, message, fix string) *object.Problem {
		problem := s.problem(field, message, fix)
		return &problem
	}
	if len(l.servers) > 0 {
		first := l.servers[0]
		if first.class() != s.class() || s.class() == model.TCP {
			return refuse("port",
				fmt.Sprintf("port %d is %s for %s, which is older and takes precedence",
					l.port, first.spec.Port.Protocol, first.object.Position()),
				"give the server another port")
		}
	}
	if s.class() == model.TLS {
		for _, name := range s.hostNames() {
			if by, ok := l.names[name]; ok {
				return refuse("hosts",
					fmt.Sprintf("TLS for %s on port %d is answered by %s, which is older and "+
						"counts: the whole server has no effect", name, l.port, by.object.Position()),
					"name each host in one server of a port only")
			}
		}
		for _, name := range s.hostNames() {
			l.names[name] = s
		}
	}
	l.servers = append(l.servers, s)
	if s.isAuto() {
		l.auto.servers = append(l.auto.servers, s)
	}
	return nil
}

// reconcile publishes the listener again if a change affects it.
func (l *gatewayListener) reconcile(v *ProxyView, name string, touched model.ChangeSummary) {
	stale := l.dirty || v.guards.changed || slices.ContainsFunc(l.servers, func(s server) bool {
		_, ok := touched.RoutedGateways[s.gateway()]
		return ok && !s.routesRequests()
	})
	for host := range l.reads {
		_, ok := touched.ChangedHosts[host]
		stale = stale || ok
	}
	if len(l.auto.servers) > 0 {
		hosts := touched.ChangedHosts
		if l.dirty {
			hosts = v.world.EverythingChanged().ChangedHosts
		}
		changed := l.auto.update(v, hosts)
		stale = stale || changed
	}
	if stale {
		l.publish(v, name)
	}
}

// publish translates and publishes the listener.
func (l *gatewayListener) publish(v *ProxyView, name string) {
	l.dirty = false
	if by := v.world.MeshConfig().ReservedBy(l.bind, l.port, false); by != "" {
		l.addressInUse(v, name, by)
		return
	}
	c := &connections{listener: l, view: v, reads: map[string]struct{}{}}
	var origins []resource.Origin
	for _, s := range l.servers {
		origins = append(origins, s.origin())
		if !s.isPassthrough() && !translate.HasAllowedTLSVersion(s.spec.Tls, v.world.MeshConfig()) {
			c.problems = append(c.problems, s.problem("tls.maxProtocolVersion",
				fmt.Sprintf("%s is below the minimum of the mesh (tlsDefaults): no client can "+
					"connect", s.spec.Tls.MaxProtocolVersion),
				"raise it, or write a minProtocolVersion of the server's own"))
		}
		switch {
		case translate.UsesMeshIdentity(s.spec.Tls) && !v.node.Identity:
			problem := s.problem("tls.mode", "the server accepts no connections: ISTIO_MUTUAL "+
				"needs a certificate of the mesh, and this proxy has no identity",
				"set provider in [identity], or write MUTUAL with certificates")
			problem.Severity = condition.Error
			c.problems = append(c.problems, problem)
		case s.isAuto(): // addAuto adds chains for all servers with AUTO_PASSTHROUGH
		case s.class() == model.HTTP:
			c.chains = []translate.GatewayFilterChain{{RouteName: s.routeName()}}
		case s.routesRequests():
			names, problems := s.serverNames()
			c.problems = append(c.problems, problems...)
			if len(names) > 0 {
				c.chains = append(c.chains, translate.GatewayFilterChain{Name: s.routeName(),
					RouteName: s.routeName(), StatPrefix: s.spec.Name, ServerNames: names,
					TLS: s.spec.Tls})
			}
		default:
			if err := c.add(s); err != nil {
				c.problems = append(c.problems,
					s.problem("port", "Envoy would refuse its routes: "+err.Error(),
						""))
			}
		}
	}
	if len(l.auto.servers) > 0 {
		if err := c.addAuto(&l.auto); err != nil {
			c.problems = append(c.problems, l.auto.servers[0].problem("port",
				"Envoy would refuse its routes: "+err.Error(), ""))
		}
	}
	l.reads = c.reads
	unit := "listener/" + name
	var listener *resource.Resource
	if len(c.chains) > 0 {
		var err error
		if listener, err = translate.GatewayListener(l.bind, l.port, c.chains, v.world.MeshConfig(),
			v.guards.SecurityFilters, v.metrics(model.ClientMode), &v.telemetry.client,
			append(origins, c.origins...)...); err != nil {
			c.problems = append(c.problems, l.servers[0].problem("port",
				"Envoy would refuse the listener: "+err.Error(), ""))
		}
	}
	v.put(unit, listener)
	v.report(unit, dedupe(c.problems))
}

// addressInUse reports for every server of the listener that its address is in use.
func (l *gatewayListener) addressInUse(v *ProxyView, name, by string) {
	var problems []object.Problem
	for _, s := range l.servers {
		problems = append(problems,
			s.problem("port", fmt.Sprintf("nothing listens for the server: port %d belongs to %s",
				l.port, by), "give the server another port"))
	}
	v.put("listener/" + name)
	v.report("listener/"+name, problems)
}

// serverNames returns those of the server's hosts that Envoy can match by SNI, and a problem for
// each other host.
func (s server) serverNames() (names []string, problems []object.Problem) {
	for _, host := range s.hostNames() {
		if !translate.CanMatchSNI(host) {
			problems = append(problems,
				s.problem("hosts", "Envoy cannot tell "+host+" by the server name of TLS",
					"write the whole first label as *"))
			continue
		}
		names = append(names, host)
	}
	return names, problems
}
