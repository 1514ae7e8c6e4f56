package store

import (
	"maps"

	"outrider.org/outrider/agent/discovery/object"
)

// In returns a store for the same files with another default namespace, and the changes that fill
// it with all objects in force, including held ones. The new store has not read any file yet; call
// Load.
func (s *Store) In(namespace string) (*Store, []object.Change) {
	options := s.options
	options.Namespace, options.LastGood = namespace, nil
	for _, o := range s.Held() {
		if s.files[o.File] == nil { // held until its file is found
			options.LastGood = append(options.LastGood, o)
		}
	}
	other := New(options)
	other.roots, other.devices = maps.Clone(s.roots), maps.Clone(s.devices)
	other.awaited = maps.Clone(s.awaited)
	before := map[object.Key]*object.Object{}
	for path, known := range s.files {
		moved := &file{problems: known.problems, restricts: known.restricts, broken: known.broken}
		held := make(map[*object.Object]bool, len(known.held))
		for _, o := range known.held {
			held[o] = true
		}
		for _, o := range known.objects {
			there := o.In(namespace)
			moved.objects = append(moved.objects, there)
			if held[o] {
				moved.held = append(moved.held, there)
			}
		}
		other.replace(path, moved, before)
	}
	changes := other.reconcile(before)
	return other, changes
}
