package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// VirtualHost is one encoded virtual host. Route configurations with thousands of virtual hosts are
// assembled from these, most of which have not changed.
type VirtualHost struct {
	Host         string // domain, or pattern of domains
	Encoded      []byte // encoded envoy.config.route.v3.VirtualHost; nil if it is invalid
	Origins      []resource.Origin
	RouteOrigins []resource.Origin // origins of its routes, in order; nil: those in Origins
	Problems     []object.Problem
	HostsRead    []string // sorted hosts whose service or DestinationRule was read
}

// virtualHostName returns Istio's name of a virtual host: host:port.
func virtualHostName(host string, port uint32) string { return fmt.Sprintf("%s:%d", host, port) }

// ServiceVirtualHost returns the virtual host of sidecars for a host and port. Its routes are those
// of the first VirtualService that has a route for the host and port; that VirtualService is
// returned as well. Without one, the only route is to the service. Without a service either, the
// result is nil.
func (r *RouteTranslator) ServiceVirtualHost(host string, service *model.Service,
	routings []*model.MergedVirtualService) (*VirtualHost, *model.MergedVirtualService) {
	r.begin()
	for _, routing := range routings {
		if routes := r.routes(routing); len(routes) > 0 {
			out := &routev3.VirtualHost{Domains: r.addresses(service)}
			var routeOrigins []resource.Origin
			for _, route := range routes {
				out.Routes = append(out.Routes, route.Route)
				routeOrigins = append(routeOrigins, route.object.RouteOrigin(route.index))
			}
			return r.finish(host, out, routeOrigins, routing.Objects()...), routing
		}
	}
	// no VirtualService has a route that applies to sidecars
	if service == nil {
		return nil, nil
	}
	route := r.defaultRoute(host, r.hashPolicy(r.service(host), r.Port, ""))
	if service.Port(r.Port).IsDynamicDNS() {
		resolvesHost(route, r.Port)
	}
	return r.finish(host, &routev3.VirtualHost{Domains: r.addresses(service),
		Routes: []*routev3.Route{route}}, nil, service.OldestServiceEntry()), nil
}

// addresses returns the addresses of a service (nil: none) that are domains of its virtual host in
// addition to its host.
func (r *RouteTranslator) addresses(service *model.Service) []string {
	if service == nil {
		return nil
	}
	domains := r.Mesh.ServiceAddresses(service, r.Port, r.HasOwnVirtualService,
		r.ServiceOnSameListener)
	for i, address := range domains {
		if strings.Contains(address, ":") {
			domains[i] = "[" + address + "]"
		}
	}
	return domains
}

// GatewayVirtualHost returns how a gateway routes requests to a host: by the routes of all
// VirtualServices, oldest first, with routes for all requests last. If redirect is set, every
// request is redirected to https.
func (r *RouteTranslator) GatewayVirtualHost(host string, routings []*model.MergedVirtualService,
	redirect bool) *VirtualHost {
	r.begin()
	out := &routev3.VirtualHost{}
	var last *ownRoute
	var routeOrigins []resource.Origin
	hidden := shadow{host: host}
	objects := make([]*object.Object, 0, len(routings))
	for _, routing := range routings {
		objects = append(objects, routing.Objects()...)
		routes := r.routes(routing)
		if len(routings) > 1 {
			hidden.add(routing, routes)
		}
		for _, route := range routes {
			switch {
			case !isEverything(route.Match):
				out.Routes = append(out.Routes, route.Route)
				routeOrigins = append(routeOrigins, route.object.RouteOrigin(route.index))
			case last == nil:
				last = &route
			}
		}
	}
	r.problems = append(r.problems, hidden.problems...)
	if last != nil {
		out.Routes = append(out.Routes, last.Route)
		routeOrigins = append(routeOrigins, last.object.RouteOrigin(last.index))
	}
	if redirect {
		out.RequireTls = routev3.VirtualHost_ALL
	}
	return r.finish(host, out, routeOrigins, objects...)
}

func (r *RouteTranslator) finish(host string, message *routev3.VirtualHost,
	routes []resource.Origin,
	from ...*object.Object) *VirtualHost {
	message.Name = virtualHostName(host, r.Port)
	message.Domains = append([]string{host}, message.Domains...)
	if r.DomainsWithPorts {
		message.Domains = withPort(message.Domains, r.Port)
	}
	message.IncludeRequestAttemptCount = true
	out := &VirtualHost{Host: host, RouteOrigins: routes}
	for _, o := range from {
		out.Origins = append(out.Origins, o.Origin())
	}
	err := message.Validate()
	if err == nil {
		out.Encoded, err = resource.Encode(message)
	}
	if err != nil {
		for _, o := range from[:min(len(from), 1)] {
			r.problems = append(r.problems, refused(o, err))
		}
	}
	out.Problems, out.HostsRead = r.TakeFindings()
	return out
}

// withPort returns the domains of requests to a port.
func withPort(domains []string, port uint32) []string {
	var out []string
	for _, domain := range domains {
		out = append(out, fmt.Sprintf("%s:%d", domain, port))
		if port == 80 {
			out = append(out, domain)
		}
	}
	return out
}

// virtualHostsField is the field number of RouteConfiguration.virtual_hosts.
const virtualHostsField = 2

// RouteConfiguration assembles a route configuration from virtual hosts in order. fallback is the
// virtual host for all other hosts; nil leaves them to Envoy's 404. withPorts says that domains
// have ports; otherwise Envoy ignores the port in a request's host. The resource's origins are
// changed (those of the latest changes), then those of the virtual hosts, unless there are more
// than maxOrigins hosts, then also.
func RouteConfiguration(name string, hosts []*VirtualHost, fallback *routev3.VirtualHost,
	withPorts bool, changed []resource.Origin, also ...resource.Origin) *resource.Resource {
	head := &routev3.RouteConfiguration{Name: name, ValidateClusters: wrapperspb.Bool(false),
		IgnorePortInHostMatching:       !withPorts,
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectResponse)}
	if fallback != nil {
		head.VirtualHosts = []*routev3.VirtualHost{fallback}
	}
	encoded := encode(head)
	size := len(encoded)
	for _, h := range hosts {
		size += protowire.SizeTag(virtualHostsField) + protowire.SizeBytes(len(h.Encoded))
	}
	encoded = slices.Grow(encoded, size-len(encoded))
	origins := slices.Clone(changed)
	slices.SortFunc(origins, func(a, b resource.Origin) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	for _, h := range hosts {
		if h.Encoded != nil {
			encoded = protowire.AppendTag(encoded, virtualHostsField, protowire.BytesType)
			encoded = protowire.AppendBytes(encoded, h.Encoded)
		}
		if len(hosts) <= maxOrigins {
			origins = append(origins, h.Origins...)
		}
	}
	return resource.FromEncoded(resource.RouteType, name, encoded,
		compact(append(origins, also...))...)
}

const (
	maxDirectResponse = 1 << 20 // bytes of a direct response, as in Istio
	// maximum number of virtual hosts for which a route configuration lists all origins
	maxOrigins = 100
)

// compact removes duplicate origins and preserves the order.
func compact(origins []resource.Origin) []resource.Origin {
	seen := make(map[resource.Origin]bool, len(origins))
	return slices.DeleteFunc(origins, func(o resource.Origin) bool {
		known := seen[o]
		seen[o] = true
		return known
	})
}

// BlockAllHost returns the virtual host that answers requests to unknown hosts with 502, as Istio's
// sidecars do for REGISTRY_ONLY. It is also used without interception, because the original
// destination is then unknown.
func BlockAllHost() *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: "block_all", Domains: []string{"*"},
		IncludeRequestAttemptCount: true,
		Routes: []*routev3.Route{{Name: "block_all", Match: everything(),
			Action: directResponse(&networking.HTTPDirectResponse{Status: 502})}}}
}

// AllowAnyHost returns the virtual host that forwards requests to unknown hosts to a cluster.
func AllowAnyHost(cluster string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: "allow_any", Domains: []string{"*"},
		IncludeRequestAttemptCount: true,
		Routes: []*routev3.Route{{Name: "allow_any", Match: everything(),
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
				Timeout:          durationpb.New(0)}}}}}
}

// NotFoundHost returns a virtual host that answers 404 to everything. It is the content of a
// gateway's route configuration without routes.
func NotFoundHost(port uint32) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: virtualHostName("blackhole", port), Domains: []string{"*"}}
}
