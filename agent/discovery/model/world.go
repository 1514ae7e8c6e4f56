// Package model holds what the objects mean together: services, the rules for them, how requests to
// them are routed, and the gateways; and tells what a change of objects touches.
package model

import (
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
)

// World is all that is known. It is not safe for concurrent use. Services, rules and routings that
// it hands out are immutable: a change makes new ones.
type World struct {
	domain string
	mesh   *mesh.Config

	entries   map[string][]*object.Object // ServiceEntries by host, the oldest first
	workloads workloads
	addresses map[string][]*object.Object // ServiceEntries by address, the oldest first
	services  map[string][]*Service

	servicePatterns []string // the wildcards of services, the narrowest first

	// DestinationRules by host or pattern, the oldest first
	ruleObjects  map[string][]*object.Object
	rules        map[string][]*ruleSet
	rulePatterns []string // the wildcards of rules, the narrowest first

	byObject map[*object.Object]*Routing
	byKey    map[object.Key]*object.Object // VirtualServices
	// VirtualServices that delegate to another, which may not be there
	delegators map[object.Key]map[*object.Object]struct{}
	// of sidecars, by host or pattern, the oldest first
	routings        map[string][]*Routing
	routingPatterns []string
	bound           map[string][]*Routing // of gateways, by "namespace/name", the oldest first

	gateways []*object.Object // the oldest first
	sidecars []*object.Object // the oldest first
	filters  []*object.Object // EnvoyFilters, the oldest first
}

// NewWorld returns an empty world; domain is that of short names, for example cluster.local.
func NewWorld(domain string, m *mesh.Config) *World {
	return &World{domain: domain, mesh: m, entries: map[string][]*object.Object{},
		workloads: newWorkloads(), addresses: map[string][]*object.Object{},
		services:    map[string][]*Service{},
		ruleObjects: map[string][]*object.Object{}, rules: map[string][]*ruleSet{},
		byObject:   map[*object.Object]*Routing{},
		byKey:      map[object.Key]*object.Object{},
		delegators: map[object.Key]map[*object.Object]struct{}{},
		routings:   map[string][]*Routing{}, bound: map[string][]*Routing{}}
}

// Domain is what short names end in, for example cluster.local.
func (w *World) Domain() string { return w.domain }

// Mesh is what counts for all of it. Not to be written to.
func (w *World) Mesh() *mesh.Config { return w.mesh }

// SetMesh changes what counts for all of it, and so touches everything.
func (w *World) SetMesh(m *mesh.Config) Touched {
	w.mesh = m
	w.delegate(slices.Collect(maps.Keys(w.delegators)), map[string]struct{}{},
		map[string]struct{}{})
	return w.Everything()
}

// Touched is what a change touches.
type Touched struct {
	// whose service, rule or routing changed; patterns of VirtualServices too
	Hosts    map[string]struct{}
	Gateways bool                // a gateway changed
	Sidecars bool                // a Sidecar changed
	Filters  bool                // an EnvoyFilter changed
	Bindings map[string]struct{} // gateways ("namespace/name") whose VirtualServices changed
}

// Everything is what touches all that a world holds: where a new reader begins.
func (w *World) Everything() Touched {
	t := Touched{Hosts: make(map[string]struct{}, len(w.services)), Gateways: true, Sidecars: true,
		Filters: true, Bindings: map[string]struct{}{}}
	for host := range w.services {
		t.Hosts[host] = struct{}{}
	}
	for host := range w.routings {
		t.Hosts[host] = struct{}{}
	}
	for host := range w.rules {
		t.Hosts[host] = struct{}{}
	}
	for gateway := range w.bound {
		t.Bindings[gateway] = struct{}{}
	}
	return t
}

// Change is an object before and after; nil where there is none.
type Change struct{ Old, New *object.Object }

// Apply takes changes in and tells what they touch.
func (w *World) Apply(changes []Change) Touched {
	services, rules, routings := map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}
	touched := Touched{Hosts: map[string]struct{}{}, Bindings: map[string]struct{}{}}
	var delegates []object.Key // VirtualServices that changed, to which others may delegate
	for _, c := range changes {
		kind := either(c).Kind
		switch kind {
		case object.WorkloadEntry:
			for _, entry := range w.workloads.change(c) {
				for _, host := range serviceHosts(entry) {
					services[host] = struct{}{}
				}
			}
		case object.ServiceEntry:
			w.workloads.choose(c)
			w.changeAddresses(c, touched.Hosts)
			for _, host := range serviceHosts(c.Old) {
				remove(w.entries, host, c.Old, object.Age)
				services[host] = struct{}{}
			}
			for _, host := range serviceHosts(c.New) {
				insert(w.entries, host, c.New, object.Age)
				services[host] = struct{}{}
			}
		case object.DestinationRule:
			if c.Old != nil {
				host := w.ruleHost(c.Old)
				remove(w.ruleObjects, host, c.Old, object.Age)
				rules[host] = struct{}{}
			}
			if c.New != nil {
				host := w.ruleHost(c.New)
				insert(w.ruleObjects, host, c.New, object.Age)
				rules[host] = struct{}{}
			}
		case object.VirtualService:
			w.applyRouting(c, routings, touched.Bindings)
			delegates = append(delegates, either(c).Key)
		case object.Gateway:
			touched.Gateways = true
			w.gateways = exchange(w.gateways, c)
		case object.Sidecar:
			touched.Sidecars = true
			w.sidecars = exchange(w.sidecars, c)
		case object.EnvoyFilter:
			touched.Filters = true
			w.filters = exchange(w.filters, c)
		}
	}
	w.delegate(delegates, routings, touched.Bindings)
	w.rebuild(services, rules, routings)
	w.spread(touched.Hosts, services, rules, routings)
	return touched
}

// rebuild merges anew what belongs to the hosts that changed.
func (w *World) rebuild(services, rules, routings map[string]struct{}) {
	for host := range services {
		if entries := w.entries[host]; len(entries) > 0 {
			w.services[host] = newServices(host, entries, w.workloads)
		} else {
			delete(w.services, host)
		}
	}
	for host := range rules {
		if objects := w.ruleObjects[host]; len(objects) > 0 {
			w.rules[host] = newRules(host, objects)
		} else {
			delete(w.rules, host)
		}
	}
	w.servicePatterns = patterns(w.servicePatterns, services, func(p string) bool {
		return len(w.services[p]) > 0
	})
	w.rulePatterns = patterns(w.rulePatterns, rules, func(p string) bool {
		return len(w.rules[p]) > 0
	})
	w.routingPatterns = patterns(w.routingPatterns, routings, func(p string) bool {
		return len(w.routings[p]) > 0
	})
}

// spread finds the hosts that changes of patterns reach, and the patterns that changes of hosts
// reach.
func (w *World) spread(hosts, services, rules, routings map[string]struct{}) {
	for host := range services {
		hosts[host] = struct{}{}
		for _, o := range w.entries[host] {
			for _, address := range entryAddresses(o) {
				w.sharing(address, hosts)
			}
		}
		if IsWildcard(host) {
			for routed := range w.routings {
				if Covers(host, routed) {
					hosts[routed] = struct{}{}
				}
			}
		}
		for _, list := range [][]string{w.routingPatterns, w.rulePatterns} {
			for _, pattern := range list {
				if Covers(pattern, host) {
					hosts[pattern] = struct{}{}
				}
			}
		}
	}
	for host := range routings {
		for _, pattern := range w.servicePatterns { // whose connections may be the host's
			if Covers(pattern, host) {
				hosts[pattern] = struct{}{}
			}
		}
	}
	for _, changed := range []map[string]struct{}{rules, routings} {
		for pattern := range changed {
			hosts[pattern] = struct{}{}
			w.sharing(pattern, hosts) // where it is an address
			if IsWildcard(pattern) {
				for host := range w.services {
					if Covers(pattern, host) {
						hosts[host] = struct{}{}
					}
				}
			}
		}
	}
}

func (w *World) ruleHost(o *object.Object) string {
	return FullName(o.Spec.(*networking.DestinationRule).Host, o.Namespace, w.domain)
}

// RuleObjects returns the DestinationRules for exactly a host or pattern, the oldest first.
func (w *World) RuleObjects(host string) []*object.Object { return w.ruleObjects[host] }

// HasServiceLike tells whether there is a service that a pattern covers.
func (w *World) HasServiceLike(pattern string) bool {
	if !IsWildcard(pattern) {
		return len(w.services[pattern]) > 0
	}
	for host := range w.services {
		if Covers(pattern, host) {
			return true
		}
	}
	return false
}

// IsReached tells whether there is a service that a host or pattern is, covers, or is covered by.
func (w *World) IsReached(host string) bool {
	return w.HasServiceLike(host) || slices.ContainsFunc(w.servicePatterns, func(p string) bool {
		return Covers(p, host)
	})
}

// Hosts returns how many hosts have a service.
func (w *World) Hosts() int { return len(w.services) }

// Bindings returns the gateways ("namespace/name") that VirtualServices name, sorted.
func (w *World) Bindings() []string { return slices.Sorted(maps.Keys(w.bound)) }

// Gateways returns the gateways whose selector a proxy with the given labels answers to, the oldest
// first.
func (w *World) Gateways(labels map[string]string) []*object.Object {
	var found []*object.Object
	for _, o := range w.gateways {
		if Selects(o.Spec.(*networking.Gateway).Selector, labels) {
			found = append(found, o)
		}
	}
	return found
}

// HasGateway tells whether there is a gateway of the name "namespace/name".
func (w *World) HasGateway(name string) bool {
	return slices.ContainsFunc(w.gateways, func(o *object.Object) bool {
		return o.Namespace+"/"+o.Name == name
	})
}

// Selects tells whether labels have everything a selector asks for; an empty one asks for nothing.
func Selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func either(c Change) *object.Object {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// exchange puts a change into a list that is ordered by age and shared with nobody after this.
func exchange(list []*object.Object, c Change) []*object.Object {
	list = slices.DeleteFunc(slices.Clone(list), func(o *object.Object) bool { return o == c.Old })
	if c.New != nil {
		at, _ := slices.BinarySearchFunc(list, c.New, object.Age)
		list = slices.Insert(list, at, c.New)
	}
	return list
}

// insert puts an element into a list that is ordered and shared with nobody after this.
func insert[K, T comparable](into map[K][]T, key K, element T, order func(a, b T) int) {
	all := into[key]
	at, _ := slices.BinarySearchFunc(all, element, order)
	into[key] = slices.Insert(slices.Clip(all), at, element)
}

func remove[K, T comparable](from map[K][]T, key K, element T, _ func(a, b T) int) {
	rest := slices.DeleteFunc(slices.Clone(from[key]), func(x T) bool { return x == element })
	if len(rest) == 0 {
		delete(from, key)
		return
	}
	from[key] = rest
}

// patterns keeps a list of wildcards, the narrowest first, up to date.
func patterns(list []string, changed map[string]struct{}, stands func(string) bool) []string {
	for pattern := range maps.Keys(changed) {
		if !IsWildcard(pattern) {
			continue
		}
		list = slices.DeleteFunc(slices.Clone(list), func(p string) bool { return p == pattern })
		if stands(pattern) {
			at, _ := slices.BinarySearchFunc(list, pattern, narrowerThenName)
			list = slices.Insert(list, at, pattern)
		}
	}
	return list
}

func narrowerThenName(a, b string) int {
	if c := Narrower(a, b); c != 0 {
		return c
	}
	if a < b {
		return -1
	} else if a > b {
		return 1
	}
	return 0
}
