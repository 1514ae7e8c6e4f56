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

// maxLinks is how many symbolic links the kernel follows on one path (ELOOP after it).
const maxLinks = 40

// maxSteps bounds the work of one scan of a path of Set: the entries of its directories, including
// ignored ones, plus the components of the paths that links lead to.
const maxSteps = 200_000

// scan is the result of a scan: the path to a root and everything below it. All paths are without
// symbolic links.
type scan struct {
	end    string              // the root's path without links; "": it does not exist
	denied bool                // its existence is unknown: a folder on its path cannot be searched
	polled bool                // inotify does not report all changes of the found files
	nodes  map[string]node     // folders, links, missing names and the end of the path
	files  map[string][]string // reported names of the selected files, by path
}

// node is what a scan found at a path.
type node struct {
	watched bool // the path itself is watched; otherwise its folder is
	entries bool // a folder in which a link, a file or a missing name was found
	listed  bool // a folder whose files are selected
}

// scanner scans a root. It watches each folder before it lists it, so that every later change
// causes an event. It lists each folder once, those without a link on their path first.
type scanner struct {
	scan
	root           *root
	folders        *folders
	left           int            // steps until maxSteps; negative: the scan is incomplete
	seen           map[stamp]bool // listed folders, by identity
	direct, linked []folder       // to be listed, in this order
}

// folder is a folder to be listed: its path without links, and the path that is reported.
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
		s.watch(end, true) // the end may be a mount, or have other names
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

// resolve resolves path, relative to folder, link by link. info is nil if the path does not exist.
func (s *scanner) resolve(folder, path string) (end string, info fs.FileInfo) {
	rest := components(path)
	for links := 0; len(rest) > 0; s.left-- {
		if s.left < 0 {
			return "", nil
		}
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			folder = filepath.Dir(folder) // correct because folder has no symbolic links
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
			return "", nil // a file where a folder should be
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

// components splits a path at its slashes, without empty components and dots.
func components(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(c string) bool {
		return c == "" || c == "."
	})
}

// watch watches path, once per scan.
func (s *scanner) watch(path string, entries bool) {
	n := s.nodes[path]
	if n.watched && (n.entries || !entries) {
		return
	}
	s.polled = !s.folders.watch(path, entries) || s.polled
	n.watched, n.entries = true, n.entries || entries
	s.nodes[path] = n
}

// list adds the files of a folder to the result, and its sub-folders to the folders to be listed.
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

// mayLead reports whether an entry of a directory can be a selected file, or a folder or link with
// selected files below it.
func (r *root) mayLead(name string) bool {
	return !strings.HasPrefix(name, ".") && (r.recursive || r.hasSuffix(name))
}

func (r *root) hasSuffix(name string) bool {
	return len(r.suffixes) == 0 || slices.ContainsFunc(r.suffixes, func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// depends reports whether an event may change the result of the scan.
func (r *root) depends(of event) bool {
	_, on := r.nodes[of.path]
	folder, name := filepath.Dir(of.path), filepath.Base(of.path)
	return on || r.nodes[folder].listed && r.mayLead(name) &&
		(r.hasSuffix(name) || of.op.Has(fsnotify.Create) && leads(of.path))
}

// leads reports whether selected files may exist below a new path: it is a folder or a link. It
// returns false for a regular file, which may have been renamed over another one, and for a path
// that no longer exists, whose removal is another event.
func leads(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && !info.Mode().IsRegular()
}
