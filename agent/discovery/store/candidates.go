package store

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

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

// compareCandidates orders objects with the same key by precedence: the first one is in force.
func (s *Store) compareCandidates(a, b *object.Object) int {
	_, i := s.rank(a.File)
	_, j := s.rank(b.File)
	return cmp.Or(cmp.Compare(i, j), object.CompareAge(a, b))
}

// reconcile determines which objects are in force now. before has the objects that were in force
// until now, by their keys; reconcile returns the changes from these objects.
func (s *Store) reconcile(before map[object.Key]*object.Object) []object.Change {
	var changes []object.Change
	for key, previous := range before {
		now := s.inForce(key)
		var has []*object.Object
		delete(s.duplicates, key)
		for i, o := range s.candidates[key] {
			if o == now {
				continue
			}
			p := s.ineffective(o, now)
			if n, ok := s.conflict(o, now, i); ok {
				p = n.problem()
				has = append(has, n.object)
			}
			s.duplicates[key] = append(s.duplicates[key], p)
		}
		if now != previous {
			changes = append(changes, object.Change{Old: previous, New: now})
		}
		changes = append(changes, changesOf(s.denials[key], has)...)
		if delete(s.denials, key); len(has) > 0 {
			s.denials[key] = has
		}
	}
	slices.SortFunc(changes, object.Change.Compare)
	return changes
}

// changesOf returns the changes from one list of objects to another. Within a list the keys differ.
func changesOf(had, has []*object.Object) (changes []object.Change) {
	for _, o := range had {
		if !slices.ContainsFunc(has, func(x *object.Object) bool { return x.Key == o.Key }) {
			changes = append(changes, object.Change{Old: o})
		}
	}
	for _, o := range has {
		c := object.Change{New: o}
		if at := slices.IndexFunc(had, func(x *object.Object) bool { return x.Key == o.Key }); at >= 0 {
			c.Old = had[at]
		}
		if c.Old != c.New {
			changes = append(changes, c)
		}
	}
	return changes
}

// conflict returns a denial for policy o, which has no effect because inForce has the same key. ok
// is false if no denial is needed: both have the same spec, or o restricts nothing. number makes
// the names of several denials of one key distinct.
func (s *Store) conflict(o, inForce *object.Object, number int) (n denial, ok bool) {
	if !o.RestrictsAccess() || isDryRun(o) ||
		!isDryRun(inForce) && proto.Equal(o.Spec, inForce.Spec) {
		return denial{}, false
	}
	n = denialOf(o)
	n.object.Name = fmt.Sprintf("%s (%s in %s, number %d)", o.Name, o.Kind, o.File, number+1)
	n.object.Spec = denyScope(o.Spec)
	for _, known := range s.denials[o.Key] {
		if known.Line == o.Line && object.Equal(known, n.object) {
			// an equal denial is reused, so that it does not count as changed
			n.object = known
		}
	}
	n.because = fmt.Sprintf("another version of it is at %s, %s", inForce.Position(),
		s.precedence(inForce, o))
	n.fix = "remove or rename one"
	return n, true
}

func isDryRun(o *object.Object) bool {
	dry, _ := strconv.ParseBool(o.Annotations[object.DryRunAnnotation])
	return dry && o.Kind == object.AuthorizationPolicy
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

// ineffective returns the problem that o is not in force because inForce (which may be nil) has the
// same key.
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
