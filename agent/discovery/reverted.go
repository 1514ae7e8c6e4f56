package discovery

import (
	"bytes"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/object"
)

// Agents before docs/decisions/0054 reverted the objects whose resources Envoy refused. What they
// stored stays in force after an upgrade, until it changes or a reload tries the newest version: by
// then the running Envoys have accepted the version before.

// setReverted sets the objects that an earlier agent reverted. PeerAuthentications are not among
// them: the version before may accept plain text.
func (r *realm) setReverted(all []lastgood.Refused) {
	r.reverted = map[object.Key]lastgood.Refused{}
	for _, refused := range all {
		if key := refused.Newest().Key; key.Kind != object.PeerAuthentication {
			r.reverted[key] = refused
		}
	}
}

// withReverted returns the changes of the files without those to reverted versions.
func (r *realm) withReverted(changes []object.Change) (all []object.Change) {
	if len(r.reverted) == 0 {
		return changes
	}
	seen := map[object.Key]bool{}
	for _, c := range changes {
		key := c.Newest().Key
		seen[key] = true
		refused, ok := r.reverted[key]
		switch same := ok && object.Equal(refused.Version, c.New); {
		case same && r.loaded: // it moved in its file
			refused.Version, c.New = c.New, c.Old
			r.reverted[key] = refused
		case same:
			refused.Version, c.New = c.New, refused.InForce
			r.reverted[key] = refused
		case ok && r.loaded:
			c.Old = refused.InForce
			delete(r.reverted, key)
		case ok:
			delete(r.reverted, key)
		}
		if c.Old != c.New {
			all = append(all, c)
		}
	}
	for key, refused := range r.reverted {
		switch {
		case r.loaded || seen[key]:
		case refused.Version == nil: // it was removed
			all = append(all, object.Change{New: refused.InForce})
		default:
			delete(r.reverted, key)
		}
	}
	return all
}

// retryReverted makes the newest versions of all objects the ones in force. Callers hold mu.
func (s *Server) retryReverted() {
	for _, r := range s.realms {
		if !r.loaded || r.restricted || len(r.reverted) == 0 {
			continue
		}
		var changes []object.Change
		for _, refused := range r.reverted {
			changes = append(changes, object.Change{Old: refused.InForce, New: refused.Version})
		}
		r.reverted = nil
		now := edit{objects: map[object.Key]bool{}}
		for _, c := range changes {
			now.objects[c.Newest().Key] = true
		}
		slices.SortFunc(changes, object.Change.Compare)
		touched := r.apply(changes)
		for _, v := range s.views {
			if v.realm == r {
				v.update(touched)
			}
		}
		s.edited(now)
	}
}

// revertedObjects returns the reverted objects, sorted by place.
func (r *realm) revertedObjects() []lastgood.Refused {
	return slices.SortedFunc(maps.Values(r.reverted), func(x, y lastgood.Refused) int {
		return object.Age(x.Newest(), y.Newest())
	})
}

// revertedProblems returns the problems of the reverted objects.
func (r *realm) revertedProblems() (all []Problem) {
	for _, refused := range r.reverted {
		o := refused.Newest()
		all = append(all, Problem{File: o.File, Line: o.Line, Object: o.String(),
			Severity: condition.Error, Message: refused.Message,
			Fix: "correct it; the version before stays in use until it changes, or a reload tries it " +
				"again"})
	}
	return all
}

// withRevertedMesh returns what was read of MeshConfig, as invalid if an earlier agent reverted it.
func (s *Server) withRevertedMesh(r meshRead) meshRead {
	refused := s.refusedMesh
	switch {
	case refused == nil || r.config == nil:
	case bytes.Equal(r.text, refused.Text) && r.config.SameMutualTLS(s.mesh):
		r.config = nil
		r.problems = append(slices.Clip(r.problems), Problem{File: r.file, Line: 1,
			Severity: condition.Error, Message: refused.Message,
			Fix: "correct it; the text before stays in use until it changes, or a reload tries it again"})
	default:
		s.refusedMesh = nil
	}
	return r
}
