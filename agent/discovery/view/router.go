package view

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// router is the view of gateways' proxies: the servers of all Gateways that select them.
type router struct {
	listeners map[string]*gatewayListener // by name
	routes    map[string]*gatewayRoutes   // by name
}

func newRouter() *router {
	return &router{listeners: map[string]*gatewayListener{}, routes: map[string]*gatewayRoutes{}}
}

// server is one server of a Gateway.
type server struct {
	object *object.Object
	spec   *networking.Server
	index  int
}

func (s server) origin() resource.Origin { return s.object.Origin() }

// gateway is the name that VirtualServices bind to.
func (s server) gateway() string { return s.object.Namespace + "/" + s.object.Name }

func (s server) problem(field, message, cure string) object.Problem {
	return s.object.Problem(object.Finding{Field: fmt.Sprintf("servers[%d].%s", s.index, field), Severity: condition.Warning, Message: message, Cure: cure})
}

func (s server) isTLS() bool {
	protocol, _ := model.ParseProtocol(s.spec.Port.Protocol, s.spec.Port.Name)
	return protocol == model.TLS
}

// hostNames are the server's hosts without their namespaces.
func (s server) hostNames() []string {
	var names []string
	for _, host := range s.spec.Hosts {
		_, name := splitHost(host)
		names = append(names, name)
	}
	return names
}

// splitHost parts "namespace/host".
func splitHost(host string) (namespace, name string) {
	namespace, name, ok := strings.Cut(host, "/")
	if !ok {
		namespace, name = "*", host
	}
	return namespace, strings.ToLower(name)
}

// gatewayListener is an address and port that servers share.
type gatewayListener struct {
	bind    string
	port    uint32
	servers []server // of one class, the oldest first
}

func (r *router) update(v *View, touched model.Touched) {
	if touched.Gateways {
		r.regroup(v)
	}
	for name, routes := range r.routes {
		routes.settle(v, name, touched)
	}
}

func (r *router) relisten(v *View) {
	for name, l := range r.listeners {
		l.publish(v, name)
	}
}

// regroup sorts the servers of all gateways into listeners and route configurations.
func (r *router) regroup(v *View) {
	before, routesBefore := r.listeners, r.routes
	r.listeners, r.routes = map[string]*gatewayListener{}, map[string]*gatewayRoutes{}
	var problems []object.Problem
	for _, o := range v.world.Gateways(v.node.Labels) {
		for _, s := range serversOf(o) {
			spec := s.spec
			address := spec.Bind
			if address == "" {
				address = "0.0.0.0"
			}
			name := translate.ListenerName(address, spec.Port.Number)
			l := r.listeners[name]
			if l == nil {
				l = &gatewayListener{bind: spec.Bind, port: spec.Port.Number}
				r.listeners[name] = l
			}
			if len(l.servers) > 0 && l.servers[0].isTLS() != s.isTLS() {
				first := l.servers[0]
				problems = append(problems, s.problem("port", fmt.Sprintf("port %d is %s for %s:%d, which is older and counts", spec.Port.Number,
					first.spec.Port.Protocol, first.object.File, first.object.Line), "give the server another port"))
				continue
			}
			l.servers = append(l.servers, s)
			r.route(s, routesBefore)
		}
	}
	v.tell("gateways", dedupe(problems))
	for name := range before {
		if r.listeners[name] == nil {
			v.put("listener/" + name)
			v.tell("listener/"+name, nil)
		}
	}
	for name := range routesBefore {
		if r.routes[name] == nil {
			v.put("route/" + name)
			v.tell("route/"+name, nil)
		}
	}
	for name, l := range r.listeners {
		l.publish(v, name)
	}
}

// route makes a server one of those that share a route configuration.
func (r *router) route(s server, before map[string]*gatewayRoutes) {
	name := s.routeName()
	routes := r.routes[name]
	if routes == nil {
		routes = &gatewayRoutes{port: s.spec.Port.Number, hosts: map[string]*gatewayHost{}, dirty: true}
		if known := before[name]; known != nil {
			routes.hosts = known.hosts
		}
		r.routes[name] = routes
	}
	routes.servers = append(routes.servers, s)
}

func (s server) routeName() string {
	if s.isTLS() {
		return translate.HTTPSRouteName(s.spec.Port.Number, s.spec.Port.Name, s.object.Name, s.object.Namespace)
	}
	return translate.HTTPRouteName(s.spec.Port.Number, s.spec.Bind)
}

// publish makes the listener's resource.
func (l *gatewayListener) publish(v *View, name string) {
	var problems []object.Problem
	var servers []translate.GatewayServer
	var origins []resource.Origin
	taken := map[string]server{}
	for _, s := range l.servers {
		origins = append(origins, s.origin())
		if !s.isTLS() {
			servers = []translate.GatewayServer{{RouteName: s.routeName()}}
			continue
		}
		var names []string
		for _, host := range s.hostNames() {
			switch by, ok := taken[host]; {
			case ok:
				problems = append(problems, s.problem("hosts", fmt.Sprintf("TLS for %s on port %d is answered by %s:%d, which is older and counts", host, l.port, by.object.File, by.object.Line),
					"name each host in one server of a port only"))
			case !translate.CanServerName(host):
				problems = append(problems, s.problem("hosts", "Envoy cannot tell "+host+" by the server name of TLS", "write the whole first label as *"))
			default:
				taken[host] = s
				names = append(names, host)
			}
		}
		if slices.Contains(names, "*") {
			names = nil
		} else if len(names) == 0 {
			continue
		}
		servers = append(servers, translate.GatewayServer{RouteName: s.routeName(), ServerNames: names, TLS: s.spec.Tls})
	}
	unit := "listener/" + name
	var listener *resource.Resource
	if len(servers) > 0 {
		var err error
		if listener, err = translate.GatewayListener(l.bind, l.port, servers, v.world.Mesh(), origins...); err != nil {
			problems = append(problems, l.servers[0].problem("port", "Envoy would refuse the listener: "+err.Error(), ""))
		}
	}
	v.put(unit, listener)
	v.tell(unit, dedupe(problems))
}

func serversOf(o *object.Object) []server {
	var all []server
	for i, spec := range o.Spec.(*networking.Gateway).Servers {
		all = append(all, server{object: o, spec: spec, index: i})
	}
	return all
}
