package watch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/readfile"
)

// maxLinks is the number of symbolic links that the kernel follows on one path before it returns
// ELOOP.
const maxLinks = 40

// maxSteps bounds the work of one scan of a path of SetPaths: the number of entries in its
// directories, including ignored ones, plus the number of components in the paths to which links
// lead.
const maxSteps = 200_000

// scan is the result of scanning a root, a path of SetPaths: what is on the path and below it. All
// paths in it are free of symbolic links.
type scan struct {
	end string // path to which the root leads; "": the root does not exist
	// a folder on the root's path cannot be searched, so it is unknown whether the root exists
	denied bool
	polled bool                // inotify does not report all changes of the found files
	nodes  map[string]node     // what was found at each path: folders, links, missing names and end
	files  map[string][]string // names under which the selected files are reported, by path
}

// node is what a scan found at a path.
type node struct {
	watched bool // the path itself is watched; false: its folder is
	entries bool // a folder of which an entry was looked up: a link, a file or a missing name
	listed  bool // a folder whose files are selected
}

// scanner scans a root, a path of SetPaths. It watches each folder before it lists the folder, so
// that every later change causes an event. It lists each folder once; folders that are reached
// without a link come first.
type scanner struct {
	scan
	root    *root
	folders *folders
	left    int            // remaining steps of maxSteps; negative: the scan is incomplete
	seen    map[stamp]bool // folders that were listed, by identity (device and inode)
	// folders to be listed: first those reached without a link, then the others
	direct, linked []folder
}

// folder is a folder to be listed: its path without symbolic links, and the name under which it is
// reported.
type folder struct{ path, name string }

func scanRoot(r *root, f *folders) scan {
	s := scanner{scan: scan{nodes: map[string]node{}, files: map[string][]string{}}, root: r,
		folders: f, left: maxSteps, seen: map[stamp]bool{}}
	end, info := s.resolve("/", r.path)
	switch s.end = end; {
	case info == nil:
	case info.IsDir():
		s.direct = []folder{{end, r.name}}
	default:
		// events of its folder do not show a mount over the file, or writes through other names
		s.watch(end, true)
		s.files[end] = []string{r.name}
	}
	for len(s.direct)+len(s.linked) > 0 && s.left >= 0 {
		if len(s.direct) == 0 {
			s.direct, s.linked = s.linked[:1:1], s.linked[1:]
		}
		next := s.direct[0]
		s.direct = s.direct[1:]
		s.list(next)
	}
	if s.left < 0 {
		f.warnIncomplete(s.end)
	}
	return s.scan
}

// resolve resolves path, relative to folder, following one link after the other. info is nil if the
// path does not exist.
func (s *scanner) resolve(folder, path string) (end string, info fs.FileInfo) {
	rest := components(path)
	for links := 0; len(rest) > 0; s.left-- {
		if s.left < 0 {
			return "", nil
		}
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			// folder contains no symbolic links, so its parent is the folder above it
			folder = filepath.Dir(folder)
			continue
		}
		s.watch(folder, false)
		next := join(folder, name)
		info, err := os.Lstat(next)
		if err != nil || !info.IsDir() {
			s.watch(folder, true)
		}
		if _, known := s.nodes[next]; !known {
			s.nodes[next] = node{}
		}
		switch {
		case err != nil:
			s.denied = s.denied || !absence(err)
			return "", nil
		case info.IsDir():
			folder = next
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return "", nil
			}
			if filepath.IsAbs(target) {
				folder = "/"
			}
			rest = append(components(target), rest...)
		case len(rest) > 0:
			return "", nil // path has a file where a folder is required
		default:
			return next, info
		}
	}
	s.watch(folder, false)
	info, err := os.Lstat(folder)
	if err != nil {
		return "", nil
	}
	return folder, info
}

// absence reports whether an error says that a path does not exist.
func absence(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// components splits a path at slashes. It omits empty components and single dots.
func components(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(c string) bool {
		return c == "" || c == "."
	})
}

// watch watches path, unless this scan did so already.
func (s *scanner) watch(path string, entries bool) {
	n := s.nodes[path]
	if n.watched && (n.entries || !entries) {
		return
	}
	s.polled = !s.folders.watch(path, entries) || s.polled
	n.watched, n.entries = true, n.entries || entries
	s.nodes[path] = n
}

// list adds the files of a folder to the result, and its sub-folders to the folders that are still
// to be listed.
func (s *scanner) list(f folder) {
	self := lstat(f.path).identity()
	if s.seen[self] {
		return
	}
	s.seen[self] = true
	s.watch(f.path, true)
	s.nodes[f.path] = node{watched: true, entries: true, listed: true}
	entries, err := readfile.ReadDirectory(f.path, s.left)
	if err != nil {
		s.folders.warn(f.path, err)
	}
	s.left -= len(entries)
	for _, entry := range entries {
		if !s.root.mayLead(entry.Name()) {
			continue
		}
		path, mode, to := join(f.path, entry.Name()), entry.Type(), &s.direct
		if mode&fs.ModeSymlink != 0 {
			end, info := s.resolve(f.path, entry.Name())
			if info == nil {
				continue
			}
			path, mode, to = end, info.Mode(), &s.linked
		}
		child := filepath.Join(f.name, entry.Name())
		switch {
		case !mode.IsDir() && s.root.hasSuffix(child):
			s.files[path] = append(s.files[path], child)
		case mode.IsDir() && s.root.recursive:
			*to = append(*to, folder{path, child})
		}
	}
}

// mayLead reports whether the name of a directory's entry can be that of a selected file, or of a
// folder or link with selected files below it.
func (r *root) mayLead(name string) bool {
	return !strings.HasPrefix(name, ".") && (r.recursive || r.hasSuffix(name))
}

func (r *root) hasSuffix(name string) bool {
	return len(r.suffixes) == 0 || slices.ContainsFunc(r.suffixes, func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// depends reports whether an event may change the result of scanning the root.
func (r *root) depends(of event) bool {
	_, on := r.nodes[of.path]
	folder, name := filepath.Dir(of.path), filepath.Base(of.path)
	return on || r.nodes[folder].listed && r.mayLead(name) &&
		(r.hasSuffix(name) || of.op.Has(fsnotify.Create) && leads(of.path))
}

// leads reports whether selected files may exist below a new path, because it is a folder or a
// link. It returns false for a regular file, which may have replaced another one, and for a path
// that no longer exists, for which there is another event.
func leads(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && !info.Mode().IsRegular()
}
