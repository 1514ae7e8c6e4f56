package discovery

import (
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// WorkloadGroup returns the WorkloadGroup in force with a name, nil if there is none. The caller
// must not modify it.
func (s *Server) WorkloadGroup(namespace, name string) *networking.WorkloadGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.config.groups[object.Key{Kind: object.WorkloadGroup, Namespace: namespace, Name: name}]
	if o == nil {
		return nil
	}
	return o.Spec.(*networking.WorkloadGroup)
}
