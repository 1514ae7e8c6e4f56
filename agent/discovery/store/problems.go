package store

import (
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// Problems returns all problems, sorted by position. Callers must not modify it.
func (s *Store) Problems() []object.Problem {
	if s.ofFiles == nil {
		s.ofFiles = []object.Problem{}
		for _, f := range s.files {
			s.ofFiles = append(s.ofFiles, f.problems...)
		}
		slices.SortFunc(s.ofFiles, object.Problem.Compare)
		s.ofFiles = slices.Compact(s.ofFiles)
	}
	if len(s.roots)+len(s.away)+len(s.missing)+len(s.duplicates) == 0 {
		return s.ofFiles
	}
	all := slices.Clone(s.ofFiles)
	for _, p := range s.roots {
		all = append(all, p)
	}
	for _, p := range s.away {
		all = append(all, p)
	}
	for _, p := range s.missing {
		if _, reported := s.roots[p.File]; !reported {
			all = append(all, p)
		}
	}
	for _, p := range s.duplicates {
		all = append(all, p...)
	}
	slices.SortFunc(all, object.Problem.Compare)
	return slices.Compact(all)
}
