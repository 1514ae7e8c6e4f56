package store

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// SetDefaultNamespace changes the default namespace. The next Load reads all files again. Problems
// of inputs contain the earlier namespace until their source delivers the inputs again.
func (s *Store) SetDefaultNamespace(namespace string) {
	s.options.Namespace = namespace
	moved := map[*object.Object]*object.Object{}
	move := func(all []*object.Object) []*object.Object {
		all = slices.Clone(all)
		for i, o := range all {
			if moved[o] == nil {
				moved[o] = o.WithNamespace(namespace)
			}
			all[i] = moved[o]
		}
		return all
	}
	for path, objects := range s.held {
		if s.files[path] == nil { // the object is held until a scan finds its file
			s.held[path] = move(objects)
		}
	}
	before := map[object.Key]*object.Object{}
	for _, path := range slices.Collect(maps.Keys(s.files)) {
		s.replace(path, s.files[path].in(move), before)
	}
	s.reconcile(before)
}

// in returns the file with its objects replaced by those that move returns. Its documents are
// dropped, so that they are read again.
func (f *file) in(move func([]*object.Object) []*object.Object) *file {
	other := &file{input: f.input, problems: f.problems, objects: move(f.objects), held: move(f.held),
		unreadable: f.unreadable}
	if f.lastRead != nil {
		other.lastRead = f.lastRead.in(move)
	}
	return other
}

// Objects returns the objects in force, one for each key, oldest first. Objects that name no
// namespace are in the given one.
func (s *Store) Objects(namespace string) []*object.Object {
	first := make(map[object.Key]*object.Object, len(s.candidates))
	policies := map[object.Key][]*object.Object{}
	for _, candidates := range s.candidates {
		for _, o := range candidates {
			if s.owner(o) != nil {
				continue
			}
			o = o.WithNamespace(namespace)
			if known := first[o.Key]; known == nil || s.compareCandidates(o, known) < 0 {
				first[o.Key] = o
			}
			if o.RestrictsAccess() {
				policies[o.Key] = append(policies[o.Key], o)
			}
		}
	}
	all := slices.Collect(maps.Values(first))
	for key, candidates := range policies {
		slices.SortFunc(candidates, s.compareCandidates)
		for i, o := range candidates[1:] {
			if n, ok := s.conflict(o, first[key], i+1); ok {
				all = append(all, n.object)
			}
		}
	}
	slices.SortFunc(all, object.CompareAge)
	return all
}
