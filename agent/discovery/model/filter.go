package model

import (
	"cmp"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// EnvoyFilters returns the EnvoyFilters for a proxy in the order in which they are applied: by
// priority, then those of the root namespace before those of the proxy's own namespace, then the
// oldest first.
func (w *Mesh) EnvoyFilters(node Node) []*object.Object {
	var found []*object.Object
	for _, o := range w.filters {
		if (o.Namespace == w.mesh.RootNamespace || o.Namespace == node.Namespace) &&
			SelectorMatches(o.Spec.(*networking.EnvoyFilter).GetWorkloadSelector().GetLabels(),
				node.Labels) {
			found = append(found, o)
		}
	}
	order := func(o *object.Object) (priority int32, rank int) {
		if o.Namespace != w.mesh.RootNamespace {
			rank = 1
		}
		return o.Spec.(*networking.EnvoyFilter).Priority, rank
	}
	slices.SortStableFunc(found, func(a, b *object.Object) int {
		priorityA, rankA := order(a)
		priorityB, rankB := order(b)
		return cmp.Or(cmp.Compare(priorityA, priorityB), cmp.Compare(rankA, rankB))
	})
	return found
}
