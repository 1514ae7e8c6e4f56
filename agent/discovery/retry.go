package discovery

import (
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// retry applies the versions that Envoy refused, as it may accept them now. It does nothing without
// a view: no Envoy is connected whose refusal could be attributed to this change.
func (s *Server) retry() {
	r := s.here
	if len(r.refused) == 0 || r.restricted || len(s.views) == 0 {
		return
	}
	var changes []object.Change
	for _, refused := range r.refused {
		changes = append(changes, object.Change{Old: refused.InForce, New: refused.Version})
	}
	slices.SortFunc(changes, object.Change.Compare)
	clear(r.refused)
	a := &applied{objects: changes}
	s.enact(changes, a)
	s.applied(a)
}
