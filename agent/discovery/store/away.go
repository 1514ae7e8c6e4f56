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

// A path is away if its file system is no longer mounted: the directory is empty, and its identity
// has changed. A configured path is also away if it has disappeared. Objects of files that are away
// stay in force, also in the next store.

// MissingPaths returns the paths that are away. They are Options.MissingPaths of the next store.
func (s *Store) MissingPaths() []string { return slices.Sorted(maps.Keys(s.away)) }

// restore puts the last good objects below the given directories in force. These were away in the
// previous store.
func (s *Store) restore(away []string) {
	s.restored = map[object.Key]*object.Object{}
	for _, folder := range away {
		// this identity never matches, so the directory stays away until it has files
		s.folders[folder] = folderID{}
		maps.DeleteFunc(s.missing, func(known string, _ object.Problem) bool {
			return within(folder, known)
		})
		for path, objects := range s.held {
			if within(folder, path) && s.files[path] == nil {
				s.replace(path, &file{objects: objects, held: objects}, s.restored)
			}
		}
	}
}

// vanished reports whether a configured path that contained files was removed, renamed or
// unmounted; after an unmount, another, empty directory is at the path. Its objects stay in force,
// because users rarely mean to delete all of them in this way.
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
	if how == "" {
		delete(s.away, root)
		return false
	}
	delete(s.roots, root)
	s.away[root] = s.awayProblem(root, how, held)
	return true
}

func holdsNothing(folder string) bool {
	nothing := true
	err := scan(folder, func(_ string, info fs.FileInfo) { nothing = nothing && info.IsDir() })
	return err == nil && nothing
}

// lost returns why a path's content is missing although it was not deleted: another, empty
// directory is there after an unmount, or a link has no target. It returns "" if the path is not
// lost.
func (s *Store) lost(folder string) string {
	before, known := s.folders[folder]
	info, err := os.Stat(folder)
	switch {
	case known && isLink(folder) && (err != nil && !isHidden(err) ||
		err == nil && !info.IsDir() && before.inode != 0):
		return "is a link to what is gone"
	case errors.Is(err, fs.ErrNotExist) && slices.Contains(s.options.Paths, folder):
		return "is gone"
	case err == nil && info.IsDir() && s.files[folder] != nil && holdsNothing(folder):
		return "is a directory in place of a file"
	case err == nil && info.IsDir() && known && !before.is(folderOf(info)) && holdsNothing(folder):
		return "is empty, and may be a mount point"
	}
	return ""
}

// retainAway retains missing files at and below a path if their directories are away (probably not
// mounted). It returns the missing files that it does not retain.
func (s *Store) retainAway(path string, missing []string) (others []string) {
	maps.DeleteFunc(s.away, func(folder string, _ object.Problem) bool { return within(path, folder) })
	type loss struct{ folder, how string }
	// losses maps the directory of each missing file to the directory that was lost: the same one,
	// or a parent. counts has the number of missing files of each lost directory.
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
		s.away[at.folder] = s.awayProblem(at.folder, at.how, n)
	}
	return others
}

func (s *Store) isAway(folder string) bool {
	for away := range s.away {
		if within(away, folder) {
			return true
		}
	}
	return false
}

// awayProblem returns the problem of a path that is away. files is the number of the path's files
// whose objects are in force; 0: its objects are unknown.
func (s *Store) awayProblem(path, how string, files int) object.Problem {
	p := object.Problem{File: path, Line: 1, Severity: condition.Warning,
		Fix: s.emptied(path, "mount or move it back")}
	switch files {
	case 0:
		p.Severity, p.Message = condition.Error, how+": "+mayRestrictText
	case 1:
		p.Message = how + ": its 1 file stays in force as last read"
	default:
		p.Message = fmt.Sprintf("%s: its %d files stay in force as last read", how, files)
	}
	return p
}

const mayRestrictText = "it may have access policies and be on a file system that is not mounted, " +
	"so nothing is served"

// emptied returns the fix for a path that is away or missing. It consists of otherwise, the fix if
// the path should have files, and the advice to create a file without objects if it should have
// none.
func (s *Store) emptied(path, otherwise string) string {
	const meant = " if nothing of it is to be in force"
	if s.files[path] != nil || isMesh(filepath.Base(path)) {
		return otherwise + ", or create " + path + " with a comment only" + meant
	}
	return otherwise + ", or create an empty file " + filepath.Join(path, "empty.yaml") + meant
}
