package model

import (
	"iter"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// VirtualServices returns all VirtualServices in no particular order.
func (w *Mesh) VirtualServices() iter.Seq[*object.Object] { return maps.Values(w.byKey) }

// VirtualService returns the VirtualService with a key, nil if there is none.
func (w *Mesh) VirtualService(key object.Key) *object.Object { return w.byKey[key] }

// AllGateways returns all Gateways, whatever their selector, oldest first. Callers must not modify
// the slice.
func (w *Mesh) AllGateways() []*object.Object { return w.gateways }

// HasSubset reports whether a DestinationRule for a host, or for a pattern that matches the host,
// has the named subset.
func (w *Mesh) HasSubset(host, name string) bool {
	named := func(s *networking.Subset) bool { return s.GetName() == name }
	has := func(rules []*object.Object) bool {
		return slices.ContainsFunc(rules, func(o *object.Object) bool {
			return slices.ContainsFunc(o.Spec.(*networking.DestinationRule).Subsets, named)
		})
	}
	covers := func(pattern string) bool {
		return HostCovers(pattern, host) &&
			has(w.ruleObjects[pattern])
	}
	return has(w.ruleObjects[host]) || slices.ContainsFunc(w.rulePatterns, covers)
}
