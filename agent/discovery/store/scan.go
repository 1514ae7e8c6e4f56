package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/readfile"
)

// fingerprint identifies a version of a file without reading it.
type fingerprint struct {
	device, inode uint64
	size          int64
	modified      time.Time
	// ctime, which shows a change even if the modification time was reset
	changed time.Time
}

func fingerprintOf(info fs.FileInfo) fingerprint {
	f := fingerprint{size: info.Size(), modified: info.ModTime()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		f.device, f.inode, f.changed = s.Dev, s.Ino, time.Unix(s.Ctim.Unix())
	}
	return f
}

// recent is the time after a change within which another change may get the same time stamps: a
// kernel tick is at most 10 ms.
const recent = 50 * time.Millisecond

// fresh reports whether a file may have changed, with an equal fingerprint, since it was read.
func (f fingerprint) fresh(read time.Time) bool {
	return f.modified.After(read.Add(-recent)) || f.changed.After(read.Add(-recent))
}

// isMesh reports whether a file in a directory is read: YAML and JSON files are, hidden ones (files
// of editors, links of a ConfigMap) are not.
func isMesh(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// maxEntries bounds the number of directory entries in one scan, including ignored ones.
const maxEntries = 100_000

// errTooMany is the error of a scan that has ended at maxEntries.
var errTooMany = fmt.Errorf("more than %d files, directories and links below this path", maxEntries)

// scan calls found for every file below root, for links without a target, and for root and each
// directory whose entries were all found. It resolves symbolic links and visits each directory
// once, first those without a link in their path. A missing root is an error; a file that vanishes
// during the scan is not.
func scan(root string, found func(path string, info fs.FileInfo)) error {
	info, err := os.Stat(root)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		found(root, info)
		return nil
	}
	s := scanner{found: found, left: maxEntries, visited: map[[2]uint64]bool{}}
	s.directories = []directory{{root, info}}
	for len(s.directories)+len(s.linked) > 0 && s.left >= 0 {
		if len(s.directories) == 0 {
			s.directories, s.linked = s.linked[:1:1], s.linked[1:]
		}
		next := s.directories[0]
		s.directories = s.directories[1:]
		s.visit(next)
	}
	if s.left < 0 {
		return errTooMany
	}
	return s.failed
}

type directory struct {
	path string
	info fs.FileInfo
}

type scanner struct {
	found func(path string, info fs.FileInfo)
	// number of directory entries that may still be read (maxEntries at first); negative: there are
	// more
	left    int
	visited map[[2]uint64]bool // directories by device and inode
	// directories to be visited: linked ones after all others
	directories, linked []directory
	failed              error // first error; the scan continues after it
}

func (s *scanner) visit(d directory) {
	self := fingerprintOf(d.info)
	identity := [2]uint64{self.device, self.inode}
	if s.visited[identity] {
		return
	}
	s.visited[identity] = true
	entries, err := readfile.ReadDirectory(d.path, s.left)
	complete := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.failed = cmp.Or(s.failed, err)
	}
	s.left -= len(entries)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") || entry.Type().IsRegular() &&
			!isMesh(entry.Name()) {
			continue
		}
		path := filepath.Join(d.path, entry.Name())
		info, err := os.Stat(path)
		switch {
		case isHidden(err):
			s.failed, complete = cmp.Or(s.failed, err), false
		case err != nil: // the entry vanished, or is a link whose target may exist again later
			if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				s.found(path, info)
			}
		case info.IsDir() && entry.IsDir():
			s.directories = append(s.directories, directory{path, info})
		case info.IsDir():
			s.linked = append(s.linked, directory{path, info})
		case info.Mode().IsRegular() && isMesh(entry.Name()):
			s.found(path, info)
		}
	}
	if complete {
		s.found(d.path, d.info)
	}
}

// isHidden reports whether an entry may exist in spite of an error of stat, such as that of a
// directory that may not be entered or of a network file system whose server does not respond.
// Otherwise the entry has vanished, or is a dangling link.
func isHidden(err error) bool {
	return err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) &&
		!errors.Is(err, syscall.ELOOP)
}

// unreadableRoot returns the problem that not all files of a configured path were found.
func (s *Store) unreadableRoot(path string, err error) object.Problem {
	p := object.Problem{File: path, Line: 1, Severity: condition.Warning,
		Message: fmt.Sprintf("cannot be read: %v", err),
		Fix:     "create it or take it out of the configuration"}
	switch {
	case s.awaited[path]:
		p.Severity = condition.Error
		if errors.Is(err, fs.ErrNotExist) {
			p.Message = "does not exist"
		}
		p.Message += ": " + mayRestrictText
		p.Fix = s.emptied(path, "mount it")
	case errors.Is(err, fs.ErrNotExist):
		p.Severity, p.Message = condition.Info, "does not exist"
	case errors.Is(err, fs.ErrPermission):
		me, _ := currentUser()
		folder := path
		if denied, ok := errors.AsType[*fs.PathError](err); ok {
			folder = denied.Path
		}
		folder = cmp.Or(closedFolder(folder), folder)
		p.Message, p.Fix = fmt.Sprintf("user %s cannot read %s", me, folder), opening(folder)
	case errors.Is(err, errTooMany):
		p.Severity, p.Message = condition.Error, err.Error()+", and the others are not read"
		p.Fix = "remove files and links from it"
	}
	return p
}
