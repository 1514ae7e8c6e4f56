package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// A path is away if its file system is not mounted any more. A configured path is also away if it
// does not exist any more. Its objects are not deleted: they stay in force, also in the next store.

// Away returns the paths that are away. They are Options.Away of the next store.
func (s *Store) Away() []string { return slices.Sorted(maps.Keys(s.away)) }

// restore puts the last good objects in force that are below directories that were away.
func (s *Store) restore(away []string) {
	s.restored = map[object.Key]*object.Object{}
	for _, folder := range away {
		s.devices[folder] = 0 // no file system has the device 0
		for path, objects := range s.held {
			if within(folder, path) && s.files[path] == nil {
				s.replace(path, &file{objects: objects, held: objects}, s.restored)
			}
		}
	}
}

// vanished reports whether a configured path that contained files has disappeared: it was removed,
// renamed or unmounted (which leaves an empty directory of another file system). Users hardly mean
// to delete all objects in this way, which would stop all traffic.
func (s *Store) vanished(root string) bool {
	held := 0
	for known := range s.files {
		if within(root, known) {
			held++
		}
	}
	if held == 0 {
		return false
	}
	how := s.lost(root)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		how = "is gone"
	}
	if how == "" {
		return false
	}
	delete(s.roots, root)
	s.away[root] = awayProblem(root, how, held, fmt.Sprintf("rename or mount it back, or take "+
		"it out of %s and restart %s", s.options.Program.Files, s.options.Program.Name))
	return true
}

func holdsNothing(folder string) bool {
	nothing := true
	err := scan(folder, func(_ string, info fs.FileInfo) { nothing = nothing && info.IsDir() })
	return err == nil && nothing
}

// lost returns why a directory is empty although its content was not deleted: an unmounted
// directory is an empty one of another file system, or a link without a target. It returns "" if
// the directory is not lost.
func (s *Store) lost(folder string) string {
	before, known := s.devices[folder]
	if !known {
		return ""
	}
	info, err := os.Stat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist) && isLink(folder):
		return "is a link to what is gone"
	case err == nil && info.IsDir() && fingerprintOf(info).device != before && holdsNothing(folder):
		return "is empty, and on another file system than before"
	}
	return ""
}

// retainAway retains missing files at and below a path if their directories are away. It returns
// the other missing files.
func (s *Store) retainAway(path string, missing []string) (others []string) {
	maps.DeleteFunc(s.away, func(folder string, _ object.Problem) bool { return within(path, folder) })
	type loss struct{ folder, how string }
	// where each directory was lost, and how many files are missing for each such place
	losses, counts := map[string]loss{}, map[loss]int{}
	for _, file := range missing {
		directory := filepath.Dir(file)
		at, known := losses[directory]
		for folder := directory; !known && at.how == "" && folder != s.rootOf(file) &&
			within(s.rootOf(file), folder); folder = filepath.Dir(folder) {
			at = loss{folder, s.lost(folder)}
		}
		losses[directory] = at
		if at.how == "" || s.files[file] == nil {
			others = append(others, file)
			continue
		}
		s.holdUnseen([]string{file})
		counts[at]++
	}
	for at, n := range counts {
		s.away[at.folder] = awayProblem(at.folder, at.how, n, "mount it back or remove it")
	}
	return others
}

// recordDevices records the file systems of the directories that a scan has found at and below a
// path, except directories that are away.
func (s *Store) recordDevices(path string, found map[string]uint64) {
	maps.DeleteFunc(s.devices, func(folder string, _ uint64) bool {
		return within(path, folder) && !s.isAway(folder)
	})
	for folder, device := range found {
		if !s.isAway(folder) {
			s.devices[folder] = device
		}
	}
}

func (s *Store) isAway(folder string) bool {
	for away := range s.away {
		if within(away, folder) {
			return true
		}
	}
	return false
}

func awayProblem(path, how string, files int, fix string) object.Problem {
	what := "file stays"
	if files > 1 {
		what = "files stay"
	}
	return object.Problem{File: path, Line: 1, Severity: condition.Warning,
		Message: fmt.Sprintf("%s: its %d %s in force as last read", how, files, what), Fix: fix}
}
