package patch

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// routes patches a route configuration, its virtual hosts and their routes.
func (a *application) routes(c *routev3.RouteConfiguration) {
	for _, p := range a.of(networking.EnvoyFilter_ROUTE_CONFIGURATION) {
		if a.meetsRoutes(p, c.Name) {
			a.mergeInto(p, c)
		}
	}
	hosts := a.matching(networking.EnvoyFilter_VIRTUAL_HOST, c.Name)
	routes := a.matching(networking.EnvoyFilter_HTTP_ROUTE, c.Name)
	c.VirtualHosts = slices.DeleteFunc(c.VirtualHosts, func(h *routev3.VirtualHost) bool {
		return !a.virtualHost(h, hosts, routes)
	})
	for _, p := range hosts {
		if p.operation == networking.EnvoyFilter_Patch_ADD {
			c.VirtualHosts = append(c.VirtualHosts, proto.Clone(p.value).(*routev3.VirtualHost))
			a.use(p)
		}
	}
}

// matching returns the patches of a kind that match a route configuration.
func (a *application) matching(kind applyTo, name string) []*patch {
	return slices.DeleteFunc(a.of(kind), func(p *patch) bool { return !a.meetsRoutes(p, name) })
}

// virtualHost patches a virtual host and its routes. It returns false if a patch removes the
// virtual host.
func (a *application) virtualHost(h *routev3.VirtualHost, hosts, routes []*patch) bool {
	remaining := a.apply(hosts, func(p *patch) bool { return meetsHost(p, h) }, func(p *patch) {
		if p.operation != networking.EnvoyFilter_Patch_REPLACE {
			a.mergeInto(p, h)
			return
		}
		proto.Reset(h)
		proto.Merge(h, p.value)
		a.use(p)
	})
	if !remaining {
		return false
	}
	h.Routes = slices.DeleteFunc(h.Routes, func(r *routev3.Route) bool {
		return !a.route(r, h, routes)
	})
	for _, p := range routes {
		if !meetsHost(p, h) {
			continue
		}
		switch p.operation {
		case networking.EnvoyFilter_Patch_ADD, networking.EnvoyFilter_Patch_INSERT_AFTER,
			networking.EnvoyFilter_Patch_INSERT_BEFORE, networking.EnvoyFilter_Patch_INSERT_FIRST:
		default:
			continue
		}
		named := routesMatch(p).GetVhost().GetRoute() != nil
		meets := func(r *routev3.Route) bool { return meetsRoute(p, r) }
		if p.operation == networking.EnvoyFilter_Patch_INSERT_FIRST && named &&
			!slices.ContainsFunc(h.Routes, meets) {
			// INSERT_FIRST with a named route applies only to virtual hosts that have that route
			continue
		}
		var done bool
		if h.Routes, done = insertByPosition(p, h.Routes, named, meets); done {
			a.use(p)
		}
	}
	return true
}

// route merges patches into a route. It returns false if a patch removes the route.
func (a *application) route(r *routev3.Route, h *routev3.VirtualHost, patches []*patch) bool {
	meets := func(p *patch) bool { return meetsHost(p, h) && meetsRoute(p, r) }
	return a.apply(patches, meets, func(p *patch) { a.mergeInto(p, r) })
}

// meetsRoutes reports whether a patch matches a route configuration. For sidecars name and port are
// compared, for gateways also the server's port name and the Gateway.
func (a *application) meetsRoutes(p *patch, name string) bool {
	match := routesMatch(p)
	if match == nil {
		return true
	}
	if match.Name != "" && match.Name != name {
		return false
	}
	if a.context != networking.EnvoyFilter_GATEWAY {
		return match.PortNumber == 0 || match.PortNumber == sidecarPort(name)
	}
	port, portName, gateway := gatewayRoutes(name)
	return (match.PortName == "" || match.PortName == portName) &&
		(match.Gateway == "" || match.Gateway == gateway) &&
		(match.PortNumber == 0 || match.PortNumber == port)
}

// sidecarPort returns the port in the name of a sidecar's route configuration, such as 80 or
// inbound|80||.
func sidecarPort(name string) uint32 {
	if rest, ok := strings.CutPrefix(name, "inbound|"); ok {
		name, _, _ = strings.Cut(rest, "|")
	}
	port, _ := strconv.ParseUint(name, 10, 16)
	return uint32(port)
}

// gatewayRoutes parses the name of a gateway's route configuration: http.80 or
// https.443.portname.gateway.namespace, optionally followed by an address.
func gatewayRoutes(name string) (port uint32, portName, gateway string) {
	parts := strings.Split(name, ".")
	if len(parts) < 2 {
		return 0, "", ""
	}
	number, _ := strconv.ParseUint(parts[1], 10, 16)
	if parts[0] == "https" && len(parts) >= 5 {
		portName, gateway = parts[2], parts[4]+"/"+parts[3]
	}
	return uint32(number), portName, gateway
}

func meetsHost(p *patch, h *routev3.VirtualHost) bool {
	match := routesMatch(p).GetVhost()
	return match == nil || (match.Name == "" || match.Name == h.Name) && (match.DomainName == "" ||
		slices.Contains(h.Domains, match.DomainName))
}

func meetsRoute(p *patch, r *routev3.Route) bool {
	match := routesMatch(p).GetVhost().GetRoute()
	if match == nil {
		return true
	}
	if match.Name != "" && match.Name != r.Name {
		return false
	}
	switch r.Action.(type) {
	case *routev3.Route_Route:
		return anyOr(match.Action, networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE)
	case *routev3.Route_Redirect:
		return anyOr(match.Action,
			networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT)
	case *routev3.Route_DirectResponse:
		return anyOr(match.Action,
			networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE)
	}
	return true
}

func anyOr(got, want networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_Action) bool {
	return got == networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ANY || got == want
}
