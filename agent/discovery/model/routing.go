package model

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// MeshGateway is the name that stands for all sidecars where gateways are listed.
const MeshGateway = "mesh"

// Routing is a VirtualService with its names resolved.
type Routing struct {
	Object   *object.Object
	Spec     *networking.VirtualService
	Hosts    []string // full names, lower case
	Gateways []string // MeshGateway or "namespace/name"
}

// GatewayName resolves the name of a gateway as an object of a namespace writes it.
func GatewayName(name, namespace string) string {
	if name == MeshGateway {
		return name
	}
	place, short, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return namespace + "/" + name
	case place == ".":
		return namespace + "/" + short
	}
	return name
}

func newRouting(o *object.Object, domain string) *Routing {
	spec := o.Spec.(*networking.VirtualService)
	r := &Routing{Object: o, Spec: spec}
	for _, host := range spec.Hosts {
		r.Hosts = append(r.Hosts, FullName(host, o.Namespace, domain))
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

func byAge(a, b *Routing) int { return object.Age(a.Object, b.Object) }

// Routing returns the VirtualService that decides for requests to a host in sidecars of a namespace: the one that names
// the host most exactly, the oldest of these. nil if there is none.
func (w *World) Routing(host, namespace string) *Routing {
	return w.routing(host, namespace, func(*Routing) bool { return true })
}

func (w *World) routing(host, namespace string, accept func(*Routing) bool) *Routing {
	if r := w.firstVisible(w.routings[host], namespace, accept); r != nil {
		return r
	}
	for _, pattern := range w.routingPatterns {
		if pattern != host && Covers(pattern, host) {
			if r := w.firstVisible(w.routings[pattern], namespace, accept); r != nil {
				return r
			}
		}
	}
	return nil
}

func (w *World) firstVisible(routings []*Routing, namespace string, accept func(*Routing) bool) *Routing {
	for _, r := range routings {
		if accept(r) && visible(r.Spec.ExportTo, w.mesh.RoutingExportTo, r.Object.Namespace, namespace) {
			return r
		}
	}
	return nil
}

// Shadowed returns the VirtualServices that name exactly this host but do not count, being younger.
func (w *World) Shadowed(host, namespace string) (by *Routing, shadowed []*Routing) {
	by = w.firstVisible(w.routings[host], namespace, func(*Routing) bool { return true })
	for _, r := range w.routings[host] {
		if r != by && visible(r.Spec.ExportTo, w.mesh.RoutingExportTo, r.Object.Namespace, namespace) {
			shadowed = append(shadowed, r)
		}
	}
	return by, shadowed
}

// Bound returns the VirtualServices of a gateway ("namespace/name") that a proxy in a namespace sees, the oldest first.
func (w *World) Bound(gateway, namespace string) []*Routing {
	var found []*Routing
	for _, r := range w.bound[gateway] {
		if visible(r.Spec.ExportTo, w.mesh.RoutingExportTo, r.Object.Namespace, namespace) {
			found = append(found, r)
		}
	}
	return found
}
