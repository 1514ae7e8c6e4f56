package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// Node returns the node of the proxies that the view is for.
func (v *ProxyView) Node() model.Node { return v.node }

// VirtualHostOrigins returns the objects that define the virtual host of a domain, the main one
// first, then the EnvoyFilters that changed the route configuration; nil if the domain has no
// virtual host of its own.
func (v *ProxyView) VirtualHostOrigins(routes, domain string) []resource.Origin {
	host := v.kind.virtualHost(routes, domain)
	if host == nil || host.Origins == nil {
		return nil
	}
	origins := slices.Clone(host.Origins)
	if r := v.current(resource.Key{Type: resource.RouteType, Name: routes}); r != nil {
		for _, o := range r.Origins {
			if o.Kind == "EnvoyFilter" && !slices.Contains(origins, o) {
				origins = append(origins, o)
			}
		}
	}
	return origins
}

// FilterOrigins returns the EnvoyFilters that added or changed a filter of a listener, the last one
// first.
func (v *ProxyView) FilterOrigins(listener, filter string) []resource.Origin {
	var origins []resource.Origin
	key := resource.Key{Type: resource.ListenerType, Name: listener}
	for _, entry := range slices.Backward(v.patches.used[key]) {
		if o := entry.Object.Origin(); entry.FilterName() == filter && !slices.Contains(origins,
			o) {
			origins = append(origins, o)
		}
	}
	return origins
}

// VirtualHostOrigins names a virtual host and the objects that define it.
type VirtualHostOrigins struct {
	Routes, VirtualHost string // names of the route configuration and of the virtual host
	Origins             []resource.Origin
	// origins of its routes in order, without EnvoyFilters; nil: none
	RouteOrigins []resource.Origin
}

// AllVirtualHostOrigins returns all virtual hosts that are defined by objects.
func (v *ProxyView) AllVirtualHostOrigins() []VirtualHostOrigins {
	var all []VirtualHostOrigins
	v.kind.eachHost(func(routes string, port uint32, host, domain string) {
		all = append(all, VirtualHostOrigins{routes, fmt.Sprintf("%s:%d", host, port),
			v.VirtualHostOrigins(routes, domain), v.kind.virtualHost(routes, domain).RouteOrigins})
	})
	return all
}

func (v *ProxyView) current(key resource.Key) *resource.Resource {
	snapshot, _ := v.feed.Current()
	return snapshot.Get(key)
}

func (s *sidecar) virtualHost(routes, domain string) *translate.VirtualHost {
	for _, p := range s.proxies {
		if at := strings.LastIndexByte(domain, ':'); p.Routes == routes && at >= 0 {
			return p.sidecar.virtualHost(domain[at+1:], domain[:at])
		}
	}
	number, err := strconv.ParseUint(routes, 10, 16)
	if err != nil || s.ports[uint32(number)] == nil {
		return nil
	}
	return s.ports[uint32(number)].hosts[domain]
}

func (s *sidecar) eachHost(visit func(routes string, port uint32, host, domain string)) {
	for number, p := range s.ports {
		for host := range p.hosts {
			if p.listens {
				visit(fmt.Sprint(number), number, host, host)
			}
		}
	}
	for _, proxy := range s.proxies {
		for number, p := range proxy.sidecar.ports {
			for host := range p.hosts {
				if proxy.listens {
					visit(proxy.Routes, number, host, fmt.Sprintf("%s:%d", host, number))
				}
			}
		}
	}
}

func (r *router) eachHost(visit func(routes string, port uint32, host, domain string)) {
	for name, routes := range r.routes {
		for host := range routes.hosts {
			visit(name, routes.port, host, host)
		}
	}
}

func (r *router) virtualHost(routes, domain string) *translate.VirtualHost {
	if r.routes[routes] == nil {
		return nil
	}
	if h := r.routes[routes].hosts[domain]; h != nil {
		return h.virtualHost
	}
	return nil
}
