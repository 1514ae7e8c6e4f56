package store

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// folderID identifies a directory. device is 0 for one of Options.PolicyFolderInodes, because a
// file system may have another device number after a boot. No directory has inode 0.
type folderID struct{ device, inode uint64 }

func folderOf(info fs.FileInfo) folderID {
	f := fingerprintOf(info)
	return folderID{f.device, f.inode}
}

func (id folderID) is(found folderID) bool {
	return id.inode == found.inode && (id.device == 0 || id.device == found.device)
}

// PolicyFolderInodes returns the inodes of the directories that contain policies, directly or below
// them, for Options.PolicyFolderInodes of the next store. An inode that is unknown is 0. The result
// is nil without Options.AwaitPaths.
func (s *Store) PolicyFolderInodes() map[string]uint64 {
	if !s.options.AwaitPaths {
		return nil
	}
	all := map[string]uint64{}
	for _, folder := range slices.AppendSeq(slices.Collect(maps.Keys(s.policyFolders)),
		maps.Keys(s.missing)) {
		for ; s.rootOf(folder) != ""; folder = filepath.Dir(folder) {
			if _, done := all[folder]; done {
				break
			}
			all[folder] = s.folders[folder].inode
		}
	}
	return all
}

// PolicyLocationsIncomplete reports whether PolicyFolderInodes and PolicyCountsByFile may be
// incomplete, because those of an earlier store were lost and not all paths were found since. It is
// Options.PolicyLocationsIncomplete of the next store.
func (s *Store) PolicyLocationsIncomplete() bool { return s.options.PolicyLocationsIncomplete }

// countPolicies updates the number of files with policies of a directory after a file has changed
// from before to next. Both may be nil.
func (s *Store) countPolicies(path string, before, next *file) {
	folder := filepath.Dir(path)
	if s.rootOf(folder) == "" {
		// a file named in the configuration may be a mount point, so it counts like a directory
		folder = path
	}
	if had, has := before.restricts(), next.restricts(); had && !has {
		if s.policyFolders[folder]--; s.policyFolders[folder] == 0 {
			delete(s.policyFolders, folder)
		}
	} else if has && !had {
		s.policyFolders[folder]++
	}
}

func (f *file) restricts() bool {
	return f != nil && slices.ContainsFunc(f.objects, func(o *object.Object) bool {
		return o.Kind.CanRestrictAccess()
	})
}

// expectFolders makes the store wait for directories that had policies in an earlier store.
func (s *Store) expectFolders(inodes map[string]uint64) {
	for folder, inode := range inodes {
		if s.rootOf(folder) != "" {
			s.folders[folder] = folderID{inode: inode}
			s.missing[folder] = object.Problem{}
		}
	}
	for _, path := range s.options.Paths {
		s.suspicious[path] = s.options.PolicyLocationsIncomplete
	}
}

// suspect marks as missing the empty directories below the configured path root, and the links
// without a target: policies may be on a file system that is not mounted there. It does so once per
// path, and only with Options.PolicyLocationsIncomplete, when the store does not know which
// directories had policies.
func (s *Store) suspect(root string, found map[string]folderID, links []string) {
	if _, ok := found[root]; !ok || !s.suspicious[root] {
		return
	}
	delete(s.suspicious, root)
	parents := map[string]bool{}
	for folder := range found {
		parents[filepath.Dir(folder)] = true
	}
	for folder := range found {
		if !parents[folder] && holdsNothing(folder) {
			links = append(links, folder)
		}
	}
	for _, folder := range links {
		s.folders[folder] = folderID{}
		s.missing[folder] = object.Problem{}
	}
}

// find stops waiting for directories that a scan of a configured path has completely read, and for
// deleted directories.
func (s *Store) find(root string, found map[string]folderID) {
	for folder := range s.missing {
		if !within(root, folder) {
			continue
		}
		absent, at := "", folder // at is the deepest directory of the path that the scan has found
		_, ok := found[at]
		for !ok && at != root {
			absent, at = at, filepath.Dir(at)
			_, ok = found[at]
		}
		how, where := s.lost(at), at
		if how == "" && absent != "" && ok {
			how, where = s.lost(absent), absent
		}
		if how == "" && ok && (absent == "" || s.isRead(absent, found)) {
			delete(s.missing, folder)
			continue
		}
		p := s.awayProblem(where, cmp.Or(how, "cannot be read completely"), 0)
		if how == "" {
			p.Fix = opening(cmp.Or(closedFolder(where), where))
		}
		s.missing[folder] = p
	}
}

// isRead reports whether a path below a completely scanned directory has no unread files: it was
// deleted, is no directory any more, or is a link to a scanned directory.
func (s *Store) isRead(path string, found map[string]folderID) bool {
	if _, err := os.Lstat(path); err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	info, err := os.Stat(path)
	return err == nil && (!info.IsDir() ||
		slices.Contains(slices.Collect(maps.Values(found)), folderOf(info)))
}

// recordFolders records the identities of the directories that a scan has found at and below a
// path, except those that are away or awaited.
func (s *Store) recordFolders(path string, found map[string]folderID) {
	unseen := func(folder string) bool {
		_, missing := s.missing[folder]
		return missing || s.isAway(folder)
	}
	maps.DeleteFunc(s.folders, func(folder string, _ folderID) bool {
		return within(path, folder) && !unseen(folder)
	})
	for folder, id := range found {
		if !unseen(folder) {
			s.folders[folder] = id
		}
	}
}
