package store

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// SetNamespace changes the default namespace. The next Load reads all files again. Problems of
// inputs contain the earlier namespace until their source delivers the inputs again.
func (s *Store) SetNamespace(namespace string) {
	s.options.Namespace = namespace
	moved := map[*object.Object]*object.Object{}
	move := func(all []*object.Object) []*object.Object {
		all = slices.Clone(all)
		for i, o := range all {
			if moved[o] == nil {
				moved[o] = o.In(namespace)
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
		known := s.files[path]
		s.replace(path, &file{input: known.input, problems: known.problems, objects: move(known.objects),
			held: move(known.held)}, before)
	}
	s.reconcile(before)
}

// Objects returns the objects in force, one for each key, oldest first. Objects that name no
// namespace are in the given one.
func (s *Store) Objects(namespace string) []*object.Object {
	oldest := make(map[object.Key]*object.Object, len(s.candidates))
	for _, candidates := range s.candidates {
		for _, o := range candidates {
			if s.owner(o) != nil {
				continue
			}
			o = o.In(namespace)
			if known := oldest[o.Key]; known == nil || s.compareCandidates(o, known) < 0 {
				oldest[o.Key] = o
			}
		}
	}
	return slices.SortedFunc(maps.Values(oldest), object.Age)
}
