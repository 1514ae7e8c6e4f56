package store

import (
	"maps"

	"outrider.org/outrider/agent/discovery/object"
)

// In returns a store of the same files in which objects that name no namespace are in another, and
// the changes that fill it: all that this one has in force, last good versions and what is of files
// that are away included. It has read nothing itself: Load does.
func (s *Store) In(namespace string) (*Store, []Change) {
	options := s.options
	options.Namespace, options.LastGood = namespace, nil
	for _, o := range s.Held() {
		if s.files[o.File] == nil { // it waits for its file
			options.LastGood = append(options.LastGood, o)
		}
	}
	other := New(options)
	other.roots, other.devices = maps.Clone(s.roots), maps.Clone(s.devices)
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
	changes := other.settle(before)
	return other, changes
}
