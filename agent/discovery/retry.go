package discovery

import (
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// retry applies the versions that Envoy refused, as it may accept them now. It skips realms without
// a view: no Envoy is connected whose refusal could be attributed to this change.
func (s *Server) retry() {
	a := &applied{}
	for _, r := range s.realms {
		var changes []object.Change
		for _, refused := range r.refused {
			changes = append(changes, object.Change{Old: refused.InForce, New: refused.Version})
		}
		if len(changes) == 0 || r.restricted || !s.viewed(r) {
			continue
		}
		slices.SortFunc(changes, object.Change.Compare)
		clear(r.refused)
		for _, c := range changes {
			a.objects = append(a.objects, objectChange{r, c})
		}
		s.enact(r, changes, a)
	}
	if len(a.objects) > 0 {
		s.applied(a)
	}
}

// viewed reports whether the realm has a view.
func (s *Server) viewed(r *realm) bool {
	for _, v := range s.views {
		if v.realm == r {
			return true
		}
	}
	return false
}
