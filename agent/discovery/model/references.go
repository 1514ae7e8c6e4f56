package model

import (
	"iter"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// VirtualServices returns all VirtualServices, in no order.
func (w *World) VirtualServices() iter.Seq[*object.Object] { return maps.Values(w.byKey) }

// VirtualService returns the VirtualService of a key, nil if there is none.
func (w *World) VirtualService(key object.Key) *object.Object { return w.byKey[key] }

// AllGateways returns the gateways of all proxies, the oldest first. Not to be written to.
func (w *World) AllGateways() []*object.Object { return w.gateways }

// HasSubset reports whether any DestinationRule for a host, or for a pattern that covers it, has a
// subset of the name.
func (w *World) HasSubset(host, name string) bool {
	named := func(s *networking.Subset) bool { return s.GetName() == name }
	has := func(rules []*object.Object) bool {
		return slices.ContainsFunc(rules, func(o *object.Object) bool {
			return slices.ContainsFunc(o.Spec.(*networking.DestinationRule).Subsets, named)
		})
	}
	covers := func(pattern string) bool {
		return Covers(pattern, host) &&
			has(w.ruleObjects[pattern])
	}
	return has(w.ruleObjects[host]) || slices.ContainsFunc(w.rulePatterns, covers)
}
