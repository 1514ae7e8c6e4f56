package model

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// MeshGateway is the name that means all sidecars in a list of gateways.
const MeshGateway = "mesh"

// MergedVirtualService is a VirtualService with resolved names and merged delegates.
type MergedVirtualService struct {
	Object *object.Object
	// spec of the VirtualService; its HTTP routes are in the field HTTP
	Spec      *networking.VirtualService
	HTTP      []HTTPRoute
	Delegates []*object.Object // delegates whose routes are in HTTP
	Problems  []object.Problem // problems found while merging delegates
	Hosts     []string         // hosts of the VirtualService: full names in lower case
	Gateways  []string         // gateways of the VirtualService: MeshGateway or "namespace/name"

	// numbers of merged and compared matches, limited by mostMerged and mostCompared
	merged, compared int
}

// HTTPRoute is one route of a VirtualService, or a route of a delegate, merged with the route that
// delegates to it. Names in it are relative to the namespace of Object.
type HTTPRoute struct {
	*networking.HTTPRoute
	Object *object.Object // VirtualService that has the destinations of the route
	Index  int            // index in the http list of Object
}

// Objects returns the VirtualService and its delegates.
func (r *MergedVirtualService) Objects() []*object.Object {
	return append([]*object.Object{r.Object}, r.Delegates...)
}

// GatewayName returns the full name of a gateway, from its name in an object of a namespace.
func GatewayName(name, namespace string) string {
	if name == MeshGateway {
		return name
	}
	qualifier, short, ok := strings.Cut(name, "/")
	switch parts := strings.SplitN(name, ".", 3); {
	case !ok && len(parts) > 1: // legacy form of a gateway's name: name.namespace.svc.cluster.local
		return parts[1] + "/" + parts[0]
	case !ok:
		return namespace + "/" + name
	case qualifier == ".":
		return namespace + "/" + short
	}
	return name
}

func (w *Mesh) newRouting(o *object.Object) *MergedVirtualService {
	spec := o.Spec.(*networking.VirtualService)
	r := &MergedVirtualService{Object: o, Spec: spec, HTTP: make([]HTTPRoute, 0, len(spec.Http))}
	for i, route := range spec.Http {
		if route.Delegate != nil {
			w.addDelegate(r, i)
		} else {
			r.HTTP = append(r.HTTP, HTTPRoute{HTTPRoute: route, Object: o, Index: i})
		}
	}
	for _, host := range spec.Hosts {
		r.Hosts = append(r.Hosts, FullName(host, o.Namespace, w.domain))
	}
	slices.Sort(r.Hosts)
	r.Hosts = slices.Compact(r.Hosts)
	for _, name := range spec.Gateways {
		r.Gateways = append(r.Gateways, GatewayName(name, o.Namespace))
	}
	if len(r.Gateways) == 0 {
		r.Gateways = []string{MeshGateway}
	}
	slices.Sort(r.Gateways)
	r.Gateways = slices.Compact(r.Gateways)
	return r
}

// applyRouting applies a change of a VirtualService, and adds the hosts and gateways that the
// change affects.
func (w *Mesh) applyRouting(c object.Change, hosts, bindings map[string]struct{}) {
	if c.Old != nil {
		w.unroute(c.Old, hosts, bindings)
		w.delegators = withoutDelegator(w.delegators, c.Old)
		if w.byKey[c.Old.Key] == c.Old {
			delete(w.byKey, c.Old.Key)
		}
	}
	if c.New != nil {
		w.byKey[c.New.Key] = c.New
		for _, key := range delegatesOf(c.New) {
			if w.delegators[key] == nil {
				w.delegators[key] = map[*object.Object]struct{}{}
			}
			w.delegators[key][c.New] = struct{}{}
		}
		w.route(c.New, hosts, bindings)
	}
}

// route adds a VirtualService to the indices.
func (w *Mesh) route(o *object.Object, hosts, bindings map[string]struct{}) {
	r := w.newRouting(o)
	w.byObject[o] = r
	r.each(func(host string) { insert(w.routings, host, r, byAge); hosts[host] = struct{}{} },
		func(gateway string) { insert(w.bound, gateway, r, byAge); bindings[gateway] = struct{}{} })
}

// unroute removes a VirtualService from the indices.
func (w *Mesh) unroute(o *object.Object, hosts, bindings map[string]struct{}) {
	r := w.byObject[o]
	delete(w.byObject, o)
	r.each(func(host string) { remove(w.routings, host, r); hosts[host] = struct{}{} },
		func(gateway string) { remove(w.bound, gateway, r); bindings[gateway] = struct{}{} })
}

// each calls host for every host that the VirtualService routes in sidecars, and gateway for every
// gateway that it names.
func (r *MergedVirtualService) each(host, gateway func(string)) {
	for _, name := range r.Gateways {
		if name != MeshGateway {
			gateway(name)
			continue
		}
		for _, h := range r.Hosts {
			host(h)
		}
	}
}

func byAge(a, b *MergedVirtualService) int { return object.CompareAge(a.Object, b.Object) }

// HTTPVirtualServices returns the VirtualServices for requests to a host from sidecars of a
// namespace, by precedence: those that name the host or, if there are none, the first one with the
// narrowest matching pattern. The first one with a route for the port applies.
func (w *Mesh) HTTPVirtualServices(host, namespace string) []*MergedVirtualService {
	return w.requests(host, namespace, everyRouting)
}

func (w *Mesh) requests(host, namespace string,
	accept func(*MergedVirtualService) bool) []*MergedVirtualService {
	if found := w.inOrder(w.routings[host], namespace, accept); len(found) > 0 {
		return found
	}
	for _, pattern := range w.routingPatterns {
		if pattern != host && HostCovers(pattern, host) {
			if found := w.inOrder(w.routings[pattern], namespace, accept); len(found) > 0 {
				return found[:1]
			}
		}
	}
	return nil
}

// TCPVirtualServices returns the VirtualServices for connections to a host from sidecars of a
// namespace, by precedence: those with a host or pattern that covers the host. If the host is
// itself a pattern, they include those with a host that it covers.
func (w *Mesh) TCPVirtualServices(host, namespace string) []*MergedVirtualService {
	return w.connections(host, namespace, everyRouting)
}

func (w *Mesh) connections(host, namespace string,
	accept func(*MergedVirtualService) bool) []*MergedVirtualService {
	all := slices.Clone(w.routings[host])
	for _, pattern := range w.routingPatterns {
		if pattern != host && (HostCovers(pattern, host) || HostCovers(host, pattern)) {
			all = append(all, w.routings[pattern]...)
		}
	}
	if IsWildcard(host) {
		for name, routings := range w.routings {
			if !IsWildcard(name) && HostCovers(host, name) {
				all = append(all, routings...)
			}
		}
	}
	return w.inOrder(all, namespace, accept)
}

// GatewayVirtualServices returns the VirtualServices of a gateway ("namespace/name") that are
// visible to a namespace, by precedence.
func (w *Mesh) GatewayVirtualServices(gateway, namespace string) []*MergedVirtualService {
	return w.inOrder(w.bound[gateway], namespace, everyRouting)
}

func everyRouting(*MergedVirtualService) bool { return true }

// inOrder returns the visible VirtualServices for which accept returns true, without duplicates, by
// precedence: first those of the reader's namespace that are not exported to all namespaces, then
// those that other namespaces export to a list of namespaces, then those exported to all
// namespaces. Within a group, the oldest comes first.
func (w *Mesh) inOrder(routings []*MergedVirtualService, reader string,
	accept func(*MergedVirtualService) bool) []*MergedVirtualService {
	var found []*MergedVirtualService
	for _, r := range routings {
		if visible(r.Spec.ExportTo, w.mesh.VirtualServiceExportTo, r.Object.Namespace, reader) &&
			accept(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, w.CompareVirtualServices(reader))
	return slices.Compact(found)
}

// CompareVirtualServices returns a comparison function that sorts the VirtualServices that are
// visible to the namespace reader by precedence.
func (w *Mesh) CompareVirtualServices(reader string) func(a, b *MergedVirtualService) int {
	return func(a, b *MergedVirtualService) int {
		return cmp.Or(cmp.Compare(w.reach(a, reader), w.reach(b, reader)), byAge(a, b))
	}
}

// reach returns the rank of a VirtualService for a reader's namespace: 2 if it is exported to all
// namespaces, otherwise 0 in its own namespace and 1 in others.
func (w *Mesh) reach(r *MergedVirtualService, reader string) int {
	to := r.Spec.ExportTo
	if len(to) == 0 {
		to = w.mesh.VirtualServiceExportTo
	}
	switch {
	case len(to) == 0 || slices.Contains(to, "*"):
		return 2
	case r.Object.Namespace == reader:
		return 0
	}
	return 1
}
