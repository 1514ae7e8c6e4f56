package store

import (
	"cmp"
	"os"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// Awaits reports whether some path of Options.Await could not be listed so far, and whether one of
// these can be listed now.
func (s *Store) Awaits() (awaits, appeared bool) {
	for path := range s.awaited {
		_, problem := s.roots[path]
		if _, away := s.away[path]; !problem && !away {
			continue // the path was not read yet
		}
		awaits, appeared = true, appeared || rootError(path) == nil
	}
	return awaits, appeared
}

// Unlisted returns the problem that policies are unknown: not all files of a configured path were
// ever found, or a required source has never delivered its complete state. ok is false if there is
// no such problem.
func (s *Store) Unlisted() (p object.Problem, ok bool) {
	for _, root := range s.options.Paths {
		if p = s.roots[root]; p.Severity == condition.Error && !s.listed[root] {
			return p, true
		}
	}
	for _, source := range s.options.Required {
		if !s.complete[source] {
			return object.Problem{File: source, Severity: condition.Error, Message: "this source " +
				"has not delivered its objects since the start, and may have access policies"}, true
		}
	}
	return object.Problem{}, false
}

// rootError returns why a configured path does not exist, or why the directory cannot be listed.
func rootError(path string) error {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return err
	}
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return directory.Close()
}

// Proceed ends the wait for paths that cannot be listed: they count as empty.
func (s *Store) Proceed() {
	for path := range s.awaited {
		delete(s.awaited, path)
		if _, problem := s.roots[path]; problem {
			s.roots[path] = s.unreadableRoot(path, cmp.Or(rootError(path), os.ErrNotExist))
		}
	}
}
