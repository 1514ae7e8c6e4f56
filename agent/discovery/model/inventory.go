package model

import (
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Inventory holds all services of a mesh, and the WorkloadEntries that may not receive requests,
// both unsorted. The referenced objects are immutable.
type Inventory struct {
	Services           []*Service
	UnhealthyWorkloads []*object.Object
}

// Inventory returns the services and unhealthy WorkloadEntries of the mesh.
func (w *Mesh) Inventory() Inventory {
	i := Inventory{Services: make([]*Service, 0, len(w.services)),
		UnhealthyWorkloads: slices.Collect(maps.Keys(w.workloads.unhealthy))}
	for _, services := range w.services {
		i.Services = append(i.Services, services...)
	}
	return i
}

// EndpointCount returns the number of endpoints of the service that may receive requests.
func (s *Service) EndpointCount() (count int) {
	for i, o := range s.Entries {
		count += len(s.workloads(i, o.Spec.(*networking.ServiceEntry)))
	}
	return count
}

// EachEndpoint calls yield with each endpoint that may receive requests, until yield returns false.
// Endpoints of the oldest ServiceEntry come first. Callers must not modify them.
func (s *Service) EachEndpoint(yield func(*networking.WorkloadEntry) bool) {
	for i, o := range s.Entries {
		for _, e := range s.workloads(i, o.Spec.(*networking.ServiceEntry)) {
			if !yield(e.WorkloadEntry) {
				return
			}
		}
	}
}

// SelectsWorkload reports whether a ServiceEntry of the service selects a WorkloadEntry with these
// labels in a namespace.
func (s *Service) SelectsWorkload(namespace string, labels map[string]string) bool {
	return namespace == s.Namespace && slices.ContainsFunc(s.Entries, func(o *object.Object) bool {
		return hasSelector(o) && SelectorMatches(selectorOf(o), labels)
	})
}
