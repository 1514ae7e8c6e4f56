package store

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// LastGoodObjects returns the objects in force whose text is invalid, unreadable or missing, sorted
// by file. They are Options.LastGood of the next store. The caller must not modify the result.
func (s *Store) LastGoodObjects() []*object.Object {
	var all []*object.Object
	for _, path := range slices.Sorted(maps.Keys(s.held)) {
		all = append(all, s.held[path]...)
		// The next store must know all policies of a file with held objects; see addDenials.
		if known := s.files[path]; known != nil {
			for _, o := range known.objects {
				if o.Kind.CanRestrictAccess() && !isDenial(o) && !slices.Contains(s.held[path], o) {
					all = append(all, o)
				}
			}
		}
	}
	return all
}

// atLineOf returns a last good version at the line of the invalid object that it replaces, if
// known: the order of objects decides between policies for the same workloads.
func (f *file) atLineOf(o *object.Object, denials []denial) *object.Object {
	line := o.Line
	for _, d := range f.documents {
		if slices.Contains(d.mentioned, o.Key) {
			line = d.first
		}
	}
	for _, n := range denials {
		if n.policy.Name != "" && n.isReplacedBy(o) {
			line = n.object.Line
		}
	}
	if line == o.Line {
		return o
	}
	moved := *o
	moved.Line = line
	return &moved
}

// CountLastGoodAwaitingFiles returns the number of last good objects that are not in force, because
// no scan has found their file yet.
func (s *Store) CountLastGoodAwaitingFiles() int {
	waiting := 0
	for path, objects := range s.held {
		if s.files[path] == nil {
			waiting += len(objects)
		}
	}
	return waiting
}

// before returns the earlier content of a file, in this store or the previous one; nil if there is
// none.
func (s *Store) before(path string) *file {
	if known := s.files[path]; known != nil {
		return known
	}
	if lastGood := s.held[path]; lastGood != nil {
		return &file{objects: lastGood}
	}
	return nil
}

// hold records the objects of a file that stay in force although its current content (nil: deleted)
// does not contain them.
func (s *Store) hold(path string, next *file) {
	if next == nil || len(next.held) == 0 {
		delete(s.held, path)
		return
	}
	s.held[path] = next.held
}

// holdUnseen records the objects of files that a scan did not reach, so that the next store knows
// them. The files are read again once a scan finds them.
func (s *Store) holdUnseen(paths []string) {
	for _, path := range paths {
		if known := s.files[path]; known != nil {
			known.held, known.print = known.objects, fingerprint{}
			s.hold(path, known)
		}
	}
}

// forget drops held objects and numbers of policies whose files do not exist, unless they are below
// a path that is missing or cannot be read.
func (s *Store) forget() {
	gone := func(path string) bool {
		_, wrong := s.roots[s.rootOf(path)]
		for folder := range s.missing {
			wrong = wrong || within(folder, path)
		}
		return !wrong && s.files[path] == nil && !s.expected(path)
	}
	maps.DeleteFunc(s.held, func(path string, _ []*object.Object) bool { return gone(path) })
	maps.DeleteFunc(s.options.PolicyCountsByFile, func(path string,
		_ int) bool {
		return gone(path)
	})
}

// unseen returns the known files below a path that a scan did not find.
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
