package view

import (
	"maps"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// router is the part of a view for gateway proxies: the servers of all Gateways that select the
// proxy.
type router struct {
	listeners map[string]*gatewayListener // listeners of the gateway by name
	routes    map[string]*gatewayRoutes   // route configurations of the gateway by name
	auto      bool                        // a server has the mode AUTO_PASSTHROUGH
}

func newRouter() *router {
	return &router{listeners: map[string]*gatewayListener{}, routes: map[string]*gatewayRoutes{}}
}

func (r *router) update(v *ProxyView, touched model.ChangeSummary) {
	for host := range touched.ChangedHosts {
		v.clusters(host, v.world.Service(host, v.node.Namespace))
	}
	hosts := touched.ChangedHosts
	if touched.GatewaysChanged {
		before := r.auto
		r.regroup(v)
		if r.auto != before {
			hosts = v.world.EverythingChanged().ChangedHosts
			maps.Copy(hosts,
				touched.ChangedHosts) // hosts that do not exist any more are touched as well
		}
	}
	if r.auto || touched.GatewaysChanged {
		r.passed(v, hosts)
	}
	if touched.GatewaysChanged || len(touched.RoutedGateways) > 0 {
		r.unmet(v)
	}
	for name, l := range r.listeners {
		l.reconcile(v, name, touched)
	}
	for name, routes := range r.routes {
		routes.reconcile(v, name, touched)
	}
}

func (r *router) relisten(v *ProxyView) {
	for name, l := range r.listeners {
		l.publish(v, name)
	}
}

// regroup distributes the servers of all Gateways among listeners and route configurations.
func (r *router) regroup(v *ProxyView) {
	before, routesBefore := r.listeners, r.routes
	r.listeners, r.routes = map[string]*gatewayListener{}, map[string]*gatewayRoutes{}
	r.auto = false
	var problems []object.Problem
	for _, o := range v.world.Gateways(v.node.Labels) {
		for _, s := range serversOf(o) {
			name := s.listenerName()
			l := r.listeners[name]
			if l == nil {
				l = &gatewayListener{bind: s.spec.Bind, port: s.spec.Port.Number,
					names: map[string]server{}, dirty: true,
					auto: autoPassthrough{routes: map[string][]translate.ConnectionRoute{}}}
				r.listeners[name] = l
			}
			s.bind = l.bind
			if problem := l.join(s); problem != nil {
				problems = append(problems, *problem)
				continue
			}
			r.auto = r.auto || s.isAuto()
			if s.routesRequests() {
				r.route(s, routesBefore)
			}
		}
	}
	v.report("gateways", dedupe(problems))
	for name := range before {
		if r.listeners[name] == nil {
			v.put("listener/" + name)
			v.report("listener/"+name, nil)
		}
	}
	for name := range routesBefore {
		if r.routes[name] == nil {
			v.put("route/" + name)
			v.report("route/"+name, nil)
		}
	}
	v.secrets.need("gateways", r.fileSecrets(v.world.MeshConfig()))
}

// route adds a server to its route configuration.
func (r *router) route(s server, before map[string]*gatewayRoutes) {
	name := s.routeName()
	routes := r.routes[name]
	if routes == nil {
		routes = &gatewayRoutes{port: s.spec.Port.Number, hosts: map[string]*gatewayHost{},
			dirty: true}
		if known := before[name]; known != nil {
			routes.hosts = known.hosts
		}
		r.routes[name] = routes
	}
	routes.servers = append(routes.servers, s)
}

// fileSecrets returns the secrets of all servers that have a listener.
func (r *router) fileSecrets(m *mesh.Config) map[translate.ConfiguredSecret][]resource.Origin {
	wanted := map[translate.ConfiguredSecret][]resource.Origin{}
	for _, l := range r.listeners {
		for _, s := range l.servers {
			if s.class() != model.TLS {
				continue
			}
			for _, secret := range translate.ServerSecrets(s.spec.Tls, m) {
				wanted[secret] = append(wanted[secret], s.origin())
			}
		}
	}
	return wanted
}
