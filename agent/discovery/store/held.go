package store

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// Held returns what is in force though its text is bad now or cannot be read, or waits for its
// file, by file: for the LastGood of a store that follows this one. The objects are the same as
// before as long as they are held.
func (s *Store) Held() []*object.Object {
	var all []*object.Object
	for _, path := range slices.Sorted(maps.Keys(s.held)) {
		all = append(all, s.held[path]...)
	}
	return all
}

// Waiting is how many of those are not in force: no file was come by that held them, as what they
// are below is not there.
func (s *Store) Waiting() int {
	waiting := 0
	for path, objects := range s.held {
		if s.files[path] == nil {
			waiting += len(objects)
		}
	}
	return waiting
}

// before is what a file held when it was last read, by this store or the one before it; nil:
// nothing.
func (s *Store) before(path string) *file {
	if known := s.files[path]; known != nil {
		return known
	}
	if lastGood := s.held[path]; lastGood != nil {
		return &file{objects: lastGood}
	}
	return nil
}

// hold notes what is in force of a file in place of what it says now (nil: it is gone).
func (s *Store) hold(path string, next *file) {
	if next == nil || len(next.held) == 0 {
		delete(s.held, path)
		return
	}
	s.held[path] = next.held
}

// holdUnseen holds on to all of files that are read though no look through their folder comes by
// them: a store that follows would not know of them. They are read again once one does.
func (s *Store) holdUnseen(paths []string) {
	for _, path := range paths {
		if known := s.files[path]; known != nil {
			known.held, known.print = known.objects, fingerprint{}
			s.hold(path, known)
		}
	}
}

// forget drops what was held on to of files that are not there. Below a configured path that cannot
// be read it waits.
func (s *Store) forget() {
	for path := range s.held {
		if _, wrong := s.roots[s.rootOf(path)]; !wrong && s.files[path] == nil {
			delete(s.held, path)
		}
	}
}

// unseen are the files below a path that are known of and that a look through it did not come by.
func (s *Store) unseen(path string, present map[string]bool) []string {
	var all []string
	for known := range s.files {
		if within(path, known) && !present[known] {
			all = append(all, known)
		}
	}
	for known := range s.held {
		if within(path, known) && !present[known] && s.files[known] == nil {
			all = append(all, known)
		}
	}
	return all
}
