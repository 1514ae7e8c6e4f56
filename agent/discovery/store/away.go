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

// A path is away if its file system is not mounted any more: it is an empty directory, and another
// one than before. A configured path is also away if it does not exist any more. Its objects are not
// deleted: they stay in force, also in the next store.

// Away returns the paths that are away. They are Options.Away of the next store.
func (s *Store) Away() []string { return slices.Sorted(maps.Keys(s.away)) }

// restore puts the last good objects in force that are below directories that were away.
func (s *Store) restore(away []string) {
	s.restored = map[object.Key]*object.Object{}
	for _, folder := range away {
		s.folders[folder] = folderID{} // no directory has the identity 0
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

// vanished reports whether a configured path that contained files has disappeared: it was removed,
// renamed or unmounted (which leaves another directory, which is empty). Users hardly mean to delete
// all objects in this way, which would stop all traffic.
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

// lost returns why a configured path or a directory is empty although its content was not deleted:
// an unmounted directory is another one, which is empty, or a link without a target. It returns ""
// if the path is not lost.
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

// retainAway retains missing files at and below a path if their directories are away. It returns
// the missing files that it does not retain.
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

// emptied returns how to fix a path that is away or does not exist: as otherwise says, or by an
// file without objects if the path is meant to have none.
func (s *Store) emptied(path, otherwise string) string {
	const meant = " if nothing of it is to be in force"
	if s.files[path] != nil || isMesh(filepath.Base(path)) {
		return otherwise + ", or create " + path + " with a comment only" + meant
	}
	return otherwise + ", or create an empty file " + filepath.Join(path, "empty.yaml") + meant
}
