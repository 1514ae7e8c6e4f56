// Package model indexes the objects of the mesh and merges them into services, DestinationRules,
// VirtualServices and gateways. Mesh.Apply reports which hosts and gateways a change of objects
// affects.
package model

import (
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/jwks"
	"outrider.org/outrider/agent/wasm"
)

// Mesh holds all objects of a mesh. It is not safe for concurrent use. The services and the merged
// DestinationRules and VirtualServices that it returns are immutable; a change creates new ones.
type Mesh struct {
	domain string
	mesh   *mesh.Config

	entries   map[string][]*object.Object // ServiceEntries by host, oldest first
	workloads workloads
	peers     *peerPolicies
	policies  policies
	// returns the key set of a source; nil: no key set is known
	keySets func(jwks.Source) string
	// returns a Wasm module; nil: clients fetch modules themselves
	modules   func(wasm.Source) ([]byte, error)
	addresses map[string][]*object.Object // ServiceEntries by address, oldest first
	services  map[string][]*Service

	servicePatterns []string // wildcard hosts of services, narrowest first

	// DestinationRules by host or pattern, oldest first
	ruleObjects  map[string][]*object.Object
	rules        map[string][]*ruleSet
	rulePatterns []string // wildcard hosts of DestinationRules, narrowest first

	byObject map[*object.Object]*MergedVirtualService
	byKey    map[object.Key]*object.Object // all VirtualServices by key
	// VirtualServices by the key of a delegate, which may not exist
	delegators map[object.Key]map[*object.Object]struct{}
	// VirtualServices for sidecars, by host or pattern, oldest first
	routings        map[string][]*MergedVirtualService
	routingPatterns []string
	// VirtualServices for gateways, by "namespace/name", oldest first
	bound map[string][]*MergedVirtualService

	gateways []*object.Object // all Gateways, the oldest first
	sidecars []*object.Object // all Sidecars, the oldest first
	filters  []*object.Object // all EnvoyFilters, the oldest first
	// Telemetries and ProxyConfigs by namespace, oldest first
	telemetries, proxyConfigs map[string][]*object.Object
}

// NewMesh returns an empty Mesh. domain is appended to short names, for example cluster.local.
func NewMesh(domain string, m *mesh.Config) *Mesh {
	return &Mesh{domain: domain, mesh: m, entries: map[string][]*object.Object{},
		workloads: newWorkloads(), peers: &peerPolicies{root: m.RootNamespace},
		policies:  policies{},
		addresses: map[string][]*object.Object{}, services: map[string][]*Service{},
		ruleObjects: map[string][]*object.Object{}, rules: map[string][]*ruleSet{},
		byObject:   map[*object.Object]*MergedVirtualService{},
		byKey:      map[object.Key]*object.Object{},
		delegators: map[object.Key]map[*object.Object]struct{}{},
		routings:   map[string][]*MergedVirtualService{}, bound: map[string][]*MergedVirtualService{},
		telemetries: map[string][]*object.Object{}, proxyConfigs: map[string][]*object.Object{}}
}

// Domain returns the domain of short names, for example cluster.local.
func (w *Mesh) Domain() string { return w.domain }

// MeshConfig returns the mesh config. Callers must not modify it.
func (w *Mesh) MeshConfig() *mesh.Config { return w.mesh }

// SetMeshConfig replaces the mesh config, which affects everything.
func (w *Mesh) SetMeshConfig(m *mesh.Config) ChangeSummary {
	w.mesh = m
	w.moveRoot()
	w.redelegate(slices.Collect(maps.Keys(w.delegators)), map[string]struct{}{},
		map[string]struct{}{})
	return w.EverythingChanged()
}

// ChangeSummary lists what a change affects.
type ChangeSummary struct {
	// hosts whose service, DestinationRule or routing changed, also wildcard hosts of
	// VirtualServices
	ChangedHosts               map[string]struct{}
	GatewaysChanged            bool
	SidecarsChanged            bool
	EnvoyFiltersChanged        bool
	PeerAuthenticationsChanged bool // a PeerAuthentication changed
	// AuthorizationPolicies, RequestAuthentications and extensions that changed, both before and
	// after the change
	ChangedPolicies    []*object.Object
	TelemetriesChanged bool                // a Telemetry changed
	KeySetsChanged     bool                // key sets of RequestAuthentications changed
	ModulesChanged     bool                // modules of extensions changed
	RoutedGateways     map[string]struct{} // gateways NAMESPACE/NAME whose VirtualServices changed
}

// EverythingChanged returns a ChangeSummary that lists everything in the Mesh, for a new view,
// which has not translated anything yet.
func (w *Mesh) EverythingChanged() ChangeSummary {
	t := ChangeSummary{ChangedHosts: make(map[string]struct{}, len(w.services)),
		GatewaysChanged: true, SidecarsChanged: true,
		EnvoyFiltersChanged: true, PeerAuthenticationsChanged: true, TelemetriesChanged: true, ModulesChanged: true,
		RoutedGateways: map[string]struct{}{}}
	for host := range w.services {
		t.ChangedHosts[host] = struct{}{}
	}
	for host := range w.routings {
		t.ChangedHosts[host] = struct{}{}
	}
	for host := range w.rules {
		t.ChangedHosts[host] = struct{}{}
	}
	for gateway := range w.bound {
		t.RoutedGateways[gateway] = struct{}{}
	}
	return t
}

// Apply applies changes and returns what they affect.
func (w *Mesh) Apply(changes []object.Change) ChangeSummary {
	services, rules, routings := map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}
	touched := ChangeSummary{ChangedHosts: map[string]struct{}{},
		RoutedGateways: map[string]struct{}{}}
	var delegates []object.Key // changed VirtualServices, on which others may depend as delegates
	for _, c := range changes {
		kind := c.NewElseOld().Kind
		switch kind {
		case object.WorkloadEntry:
			for _, entry := range w.workloads.change(c) {
				for _, host := range serviceHosts(entry) {
					services[host] = struct{}{}
				}
			}
		case object.ServiceEntry:
			w.workloads.choose(c)
			w.changeAddresses(c, touched.ChangedHosts)
			for _, host := range serviceHosts(c.Old) {
				remove(w.entries, host, c.Old)
				services[host] = struct{}{}
			}
			for _, host := range serviceHosts(c.New) {
				insert(w.entries, host, c.New, object.CompareAge)
				services[host] = struct{}{}
			}
		case object.DestinationRule:
			if c.Old != nil {
				host := w.ruleHost(c.Old)
				remove(w.ruleObjects, host, c.Old)
				rules[host] = struct{}{}
			}
			if c.New != nil {
				host := w.ruleHost(c.New)
				insert(w.ruleObjects, host, c.New, object.CompareAge)
				rules[host] = struct{}{}
			}
		case object.VirtualService:
			w.applyRouting(c, routings, touched.RoutedGateways)
			delegates = append(delegates, c.NewElseOld().Key)
		case object.Gateway:
			touched.GatewaysChanged = true
			w.gateways = replace(w.gateways, c)
		case object.Sidecar:
			touched.SidecarsChanged = true
			w.sidecars = replace(w.sidecars, c)
		case object.PeerAuthentication:
			touched.PeerAuthenticationsChanged = true
			w.changePeers(c, services)
		case object.AuthorizationPolicy, object.RequestAuthentication, object.WasmPlugin,
			object.TrafficExtension:
			w.policies.change(c)
			for _, o := range []*object.Object{c.Old, c.New} {
				if o != nil {
					touched.ChangedPolicies = append(touched.ChangedPolicies, o)
				}
			}
		case object.EnvoyFilter:
			touched.EnvoyFiltersChanged = true
			w.filters = replace(w.filters, c)
		case object.Telemetry:
			touched.TelemetriesChanged = true
			if c.Old != nil {
				remove(w.telemetries, c.Old.Namespace, c.Old)
			}
			if c.New != nil {
				insert(w.telemetries, c.New.Namespace, c.New, object.CompareAge)
			}
		case object.ProxyConfig: // no resource depends on it
			if c.Old != nil {
				remove(w.proxyConfigs, c.Old.Namespace, c.Old)
			}
			if c.New != nil {
				insert(w.proxyConfigs, c.New.Namespace, c.New, object.CompareAge)
			}
		}
	}
	w.redelegate(delegates, routings, touched.RoutedGateways)
	w.rebuild(services, rules, routings)
	w.propagate(touched.ChangedHosts, services, rules, routings)
	return touched
}

// rebuild merges the services and DestinationRules of changed hosts again.
func (w *Mesh) rebuild(services, rules, routings map[string]struct{}) {
	for host := range services {
		if entries := w.entries[host]; len(entries) > 0 {
			w.services[host] = newServices(host, entries, w.workloads, w.peers)
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

// propagate adds to hosts the changed hosts, the hosts that changed patterns match, and the
// patterns that match changed hosts.
func (w *Mesh) propagate(hosts, services, rules, routings map[string]struct{}) {
	for host := range services {
		hosts[host] = struct{}{}
		for _, o := range w.entries[host] {
			for _, address := range entryAddresses(o) {
				w.addHostsOf(address, hosts)
			}
		}
		if IsWildcard(host) {
			for routed := range w.routings {
				if HostCovers(host, routed) {
					hosts[routed] = struct{}{}
				}
			}
		}
		for _, list := range [][]string{w.routingPatterns, w.rulePatterns} {
			for _, pattern := range list {
				if HostCovers(pattern, host) {
					hosts[pattern] = struct{}{}
				}
			}
		}
	}
	for host := range routings {
		// TCP routes for the host may apply to connections to a service with a wildcard host
		for _, pattern := range w.servicePatterns {
			if HostCovers(pattern, host) {
				hosts[pattern] = struct{}{}
			}
		}
	}
	for _, changed := range []map[string]struct{}{rules, routings} {
		for pattern := range changed {
			hosts[pattern] = struct{}{}
			w.addHostsOf(pattern, hosts) // a DestinationRule or VirtualService may name an address
			if IsWildcard(pattern) {
				for host := range w.services {
					if HostCovers(pattern, host) {
						hosts[host] = struct{}{}
					}
				}
			}
		}
	}
}

func (w *Mesh) ruleHost(o *object.Object) string {
	return FullName(o.Spec.(*networking.DestinationRule).Host, o.Namespace, w.domain)
}

// DestinationRuleObjects returns the DestinationRules whose host equals a host or pattern, oldest
// first.
func (w *Mesh) DestinationRuleObjects(host string) []*object.Object { return w.ruleObjects[host] }

// HasMatchingService reports whether a service matches a pattern.
func (w *Mesh) HasMatchingService(pattern string) bool {
	if !IsWildcard(pattern) {
		return len(w.services[pattern]) > 0
	}
	for host := range w.services {
		if HostCovers(pattern, host) {
			return true
		}
	}
	return false
}

// HasOverlappingService reports whether a service has a host that equals a host or pattern, matches
// it, or is matched by it.
func (w *Mesh) HasOverlappingService(host string) bool {
	return w.HasMatchingService(host) || slices.ContainsFunc(w.servicePatterns, func(p string) bool {
		return HostCovers(p, host)
	})
}

// ServiceHostCount returns the number of hosts that have a service.
func (w *Mesh) ServiceHostCount() int { return len(w.services) }

// ServiceHosts returns the hosts that have a service, sorted.
func (w *Mesh) ServiceHosts() []string { return slices.Sorted(maps.Keys(w.services)) }

// RoutedGateways returns the gateways ("namespace/name") named by VirtualServices, sorted.
func (w *Mesh) RoutedGateways() []string { return slices.Sorted(maps.Keys(w.bound)) }

// Gateways returns the Gateways whose selector matches a proxy's labels, oldest first.
func (w *Mesh) Gateways(labels map[string]string) []*object.Object {
	var found []*object.Object
	for _, o := range w.gateways {
		if SelectorMatches(o.Spec.(*networking.Gateway).Selector, labels) {
			found = append(found, o)
		}
	}
	return found
}

// HasGateway reports whether the Gateway "namespace/name" exists.
func (w *Mesh) HasGateway(name string) bool {
	return slices.ContainsFunc(w.gateways, func(o *object.Object) bool {
		return o.Namespace+"/"+o.Name == name
	})
}

// SelectorMatches reports whether a selector matches labels. An empty selector matches all.
func SelectorMatches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}
