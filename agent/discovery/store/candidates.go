package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// rank returns the source of a path, and the index of the source in Options.Sources.
func (s *Store) rank(path string) (source string, rank int) {
	if source, _, ok := strings.Cut(path, ":"); ok {
		if rank, ok := s.ranks[source]; ok {
			return source, rank
		}
	}
	return FilesSource, s.ranks[FilesSource]
}

// compareCandidates compares objects with the same key by precedence: the first one is in force.
func (s *Store) compareCandidates(a, b *object.Object) int {
	_, i := s.rank(a.File)
	_, j := s.rank(b.File)
	return cmp.Or(cmp.Compare(i, j), object.Age(a, b))
}

// reconcile updates the objects in force and returns the changes; before has the earlier ones.
func (s *Store) reconcile(before map[object.Key]*object.Object) []object.Change {
	var changes []object.Change
	for key, previous := range before {
		delete(s.duplicates, key)
		now := s.inForce(key)
		for _, o := range s.candidates[key] {
			if o != now {
				s.duplicates[key] = append(s.duplicates[key], s.ineffective(o, now))
			}
		}
		if now != previous {
			changes = append(changes, object.Change{Old: previous, New: now})
		}
	}
	slices.SortFunc(changes, object.Change.Compare)
	return changes
}

// inForce returns the object with a key that is in force, nil if there is none.
func (s *Store) inForce(key object.Key) *object.Object {
	for _, o := range s.candidates[key] {
		if s.owner(o) == nil {
			return o
		}
	}
	return nil
}

// ineffective returns the problem that an object is not in force, because inForce with the same key
// is; inForce may be nil.
func (s *Store) ineffective(o, inForce *object.Object) object.Problem {
	p := object.Problem{File: o.File, Line: o.Line, Object: o.String(),
		Severity: condition.Warning}
	if owner := s.owner(o); owner != nil {
		p.Message = fmt.Sprintf("has no effect: its host is given by %s too, %s", owner.Position(),
			s.precedence(owner, o))
		p.Fix = "remove it from one of the registries, or change their order"
		return p
	}
	p.Message = fmt.Sprintf("has no effect: it is given at %s too, %s", inForce.Position(),
		s.precedence(inForce, o))
	p.Fix = "remove or rename one"
	return p
}

// precedence describes why one of two objects with the same key is in force; see compareCandidates.
func (s *Store) precedence(inForce, other *object.Object) string {
	first, _ := s.rank(inForce.File)
	second, _ := s.rank(other.File)
	switch {
	case first != second:
		return fmt.Sprintf("and source %s precedes %s", first, second)
	case !inForce.Created.Equal(other.Created):
		return "which has the earlier creationTimestamp (an object without one counts as earlier)"
	case inForce.File != other.File:
		return "in the file whose name sorts first"
	}
	return "first in the file"
}
