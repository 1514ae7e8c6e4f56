package watch

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// maxLinks is how many symbolic links the kernel follows on one path (ELOOP after it).
const maxLinks = 40

// scan is what was found on the way to a root and below it. All paths are free of symbolic links.
type scan struct {
	end    string              // where the root leads; "": nowhere
	places map[string]place    // what the way depends on: folders, links, missing names, its end
	files  map[string][]string // files that count, by path, with their names as reported
}

// place is what a scan found a path to be.
type place struct {
	watched bool // a folder whose entries matter
	listed  bool // a folder whose files count
}

// scanner scans a root. It has each folder watched before it looks into it, so that a later change
// makes an event.
type scanner struct {
	scan
	root    *root
	folders *folders
}

func scanRoot(r *root, f *folders) scan {
	s := scanner{scan{places: map[string]place{}, files: map[string][]string{}}, r, f}
	end, info := s.follow("/", r.path)
	switch s.end = end; {
	case info == nil:
	case info.IsDir():
		s.list(r.name, end, nil)
	default:
		s.files[end] = []string{r.name}
	}
	return s.scan
}

// follow resolves path, relative to folder, link by link. info is nil if it leads nowhere.
func (s *scanner) follow(folder, path string) (end string, info fs.FileInfo) {
	rest := components(path)
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			folder = filepath.Dir(folder) // correct because folder has no symbolic links
			continue
		}
		here := filepath.Join(folder, name)
		info, err := os.Lstat(here)
		if (err != nil || !info.IsDir()) && s.watch(folder) {
			info, err = os.Lstat(here) // it may have changed before it was watched
		}
		if _, known := s.places[here]; !known {
			s.places[here] = place{}
		}
		switch {
		case err != nil:
			return "", nil
		case info.IsDir():
			folder = here
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(here)
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
			return here, info
		}
	}
	info, err := os.Lstat(folder)
	if err != nil {
		return "", nil
	}
	return folder, info
}

// components splits a path at its slashes, without empty components and dots.
func components(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(c string) bool {
		return c == "" || c == "."
	})
}

// watch has the entries of folder watched, and reports whether this scan had not done so before.
func (s *scanner) watch(folder string) bool {
	if s.places[folder].watched {
		return false
	}
	s.folders.watch(folder)
	s.places[folder] = place{watched: true}
	return true
}

// list adds the files of folder, whose path is reported as name. It follows no symbolic links to
// the folders above.
func (s *scanner) list(name, folder string, above []string) {
	s.watch(folder)
	s.places[folder] = place{watched: true, listed: true}
	above = append(slices.Clip(above), folder)
	found, err := os.ReadDir(folder)
	if err != nil {
		s.folders.warn(folder, err)
	}
	for _, f := range found {
		if !s.root.wants(f.Name()) {
			continue
		}
		path, mode := filepath.Join(folder, f.Name()), f.Type()
		if mode&fs.ModeSymlink != 0 {
			end, info := s.follow(folder, f.Name())
			if info == nil {
				continue
			}
			path, mode = end, info.Mode()
		}
		child := filepath.Join(name, f.Name())
		switch {
		case !mode.IsDir() && s.root.hasSuffix(child):
			s.files[path] = append(s.files[path], child)
		case mode.IsDir() && s.root.recursive && !slices.Contains(above, path):
			s.list(child, path, above)
		}
	}
}

// wants reports whether an entry of a directory can be a file that counts, or lead to one.
func (r *root) wants(name string) bool {
	return !strings.HasPrefix(name, ".") && (r.recursive || r.hasSuffix(name))
}

func (r *root) hasSuffix(name string) bool {
	return len(r.suffixes) == 0 || slices.ContainsFunc(r.suffixes, func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// depends reports whether an event may change what the scan found.
func (r *root) depends(event fsnotify.Event) bool {
	_, on := r.places[event.Name]
	folder, name := filepath.Dir(event.Name), filepath.Base(event.Name)
	return on || r.places[folder].listed && r.wants(name) &&
		(r.hasSuffix(name) || event.Has(fsnotify.Create) && leads(event.Name))
}

// leads reports whether files may count below a new path: a folder or a link. Renaming a file over
// another one creates its path, too. A path that no longer exists is ignored:
// its removal is another event.
func leads(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && !info.Mode().IsRegular()
}
