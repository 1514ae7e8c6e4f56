package store

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// AwaitsMissingPaths reports whether the store waits for a path that is missing or whose file
// system was unmounted (awaits), and whether such a path may exist now (appeared).
func (s *Store) AwaitsMissingPaths() (awaits, appeared bool) {
	for path := range s.awaited {
		if _, problem := s.roots[path]; problem { // the path was not read yet
			awaits, appeared = true, appeared || rootError(path) == nil
		}
	}
	for path := range s.away {
		awaits, appeared = true, appeared || s.lost(path) == ""
	}
	for _, p := range s.missing {
		if p.File != "" {
			err := rootError(p.File)
			awaits, appeared = true, appeared || s.lost(p.File) == "" &&
				(err == nil || errors.Is(err, fs.ErrNotExist))
		}
	}
	return awaits, appeared
}

// PoliciesIncompleteProblem returns the problem that policies are unknown: a configured path, or
// one of Options.PolicyFolderInodes, was never completely listed, or a required source has never
// delivered its complete state. ok is false if there is none.
func (s *Store) PoliciesIncompleteProblem() (p object.Problem, ok bool) {
	for _, root := range s.options.Paths {
		if p = s.roots[root]; p.Severity == condition.Error && !s.listed[root] {
			return p, true
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(s.missing)) {
		return s.missing[folder], true
	}
	for _, source := range s.options.RequiredSources {
		if !s.complete[source] {
			return object.Problem{File: source, Severity: condition.Error, Message: "this source " +
				"has not delivered its objects since the start, and may have access policies"}, true
		}
	}
	return object.Problem{}, false
}

// recordRoot records whether a scan of a configured path has found all files. err is the error of
// the scan.
func (s *Store) recordRoot(path string, err error) {
	delete(s.roots, path)
	if _, missing := s.missing[path]; !missing {
		s.listed[path] = s.listed[path] || err == nil
		if !errors.Is(err, fs.ErrNotExist) && rootError(path) == nil {
			delete(s.awaited, path)
		}
	}
	if err != nil {
		s.roots[path] = s.unreadableRoot(path, err)
	}
}

// rootError returns why a path does not exist, or why the directory cannot be listed.
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
