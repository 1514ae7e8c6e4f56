package watch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links the kernel follows on one path (ELOOP after it).
const maxLinks = 40

// maxTries is how often a path is followed whose folders are replaced meanwhile.
const maxTries = 10

// point is a name in a folder (of a path free of symbolic links) on which a path depends: if something happens to it,
// the path may lead elsewhere.
type point struct{ folder, name string }

// resolution is where a path leads.
type resolution struct {
	points []point
	looks  []string    // the folders whose entries must be watched for it
	end    *end        // where a path ended that leads nowhere; nil: nobody needs to know
	real   string      // free of symbolic links; "" where the path leads nowhere
	info   fs.FileInfo // of real; nil where the path leads nowhere
	err    error       // why it leads nowhere, where that is not fs.ErrNotExist
}

// watching is done before anything is looked at, so that a change after the look is not missed.
type watching interface {
	look(folder string)      // watches the entries of a folder
	hold(folder string) bool // watches that a folder is moved or removed; false: it is none, or that cannot be watched
}

// end is a folder in which a path ends that leads nowhere, though other things are in it.
type end struct {
	folder string
	info   fs.FileInfo
}

// stands says whether the folder is still the one of its path, and something is in it.
func (e *end) stands() bool {
	opened, err := os.Open(e.folder)
	if err != nil {
		return false
	}
	defer func() { _ = opened.Close() }() // it was only read
	now, err := opened.Stat()
	if err != nil || !os.SameFile(e.info, now) {
		return false
	}
	names, _ := opened.Readdirnames(1)
	return len(names) > 0
}

// resolver follows a path.
type resolver struct {
	watching
	found  resolution
	folder string      // free of links: where it is
	info   fs.FileInfo // of the folder, which was held; nil: it is not
}

// resolve follows path, relative to folder, link by link.
//
// What happens in a folder above the one that the path ends in is nobody's business (it may be /tmp) but that the next folder on the way
// is replaced. So that one is held, if there is one. A folder that is removed while somebody stands in it says so only when he
// leaves. As nothing is in it then, the path led nowhere before: where one ends in a folder with nothing in it, the entries of the
// folder above are watched.
func resolve(folder, path string, w watching) resolution {
	for tries := 1; ; tries++ {
		r := &resolver{watching: w, folder: folder}
		if r.follow(path); r.found.info != nil || r.nowhere() || tries == maxTries {
			return r.found
		}
	}
}

// lookInto watches the entries of a folder for the path's sake.
func (r *resolver) lookInto(folder string) {
	r.look(folder)
	r.found.looks = append(r.found.looks, folder)
}

func (r *resolver) follow(path string) {
	rest := strings.Split(path, "/")
	links := 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			r.folder, r.info = filepath.Dir(r.folder), nil // right, since folder is free of links
			continue
		}
		here := filepath.Join(r.folder, name)
		r.found.points = append(r.found.points, point{r.folder, name})
		held := !onlyDots(rest) && r.hold(here)
		if !held {
			r.lookInto(r.folder)
		}
		info, err := os.Lstat(here)
		if held && (err != nil || !info.IsDir()) { // it has just gone
			r.lookInto(r.folder)
			info, err = os.Lstat(here)
		}
		if err != nil {
			if !os.IsNotExist(err) {
				r.found.err = err
			}
			return
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				r.found.err = &fs.PathError{Op: "resolve", Path: path, Err: unix.ELOOP}
				return
			}
			target, err := os.Readlink(here)
			if err != nil {
				return // replaced in this moment: its event comes
			}
			if filepath.IsAbs(target) {
				r.folder, r.info = "/", nil
			}
			rest = append(strings.Split(target, "/"), rest...)
		case info.IsDir():
			if r.folder, r.info = here, nil; held {
				r.info = info
			}
		case onlyDots(rest):
			r.found.real, r.found.info = here, info
			return
		default:
			return // a file where a folder should be
		}
	}
	if info, err := os.Lstat(r.folder); err == nil {
		r.found.real, r.found.info = r.folder, info
	}
}

// nowhere watches more of where a path ended that leads nowhere; false: meanwhile the folder that it ended in has gone.
func (r *resolver) nowhere() bool {
	if r.info == nil {
		return true
	}
	if last := (&end{r.folder, r.info}); last.stands() {
		r.found.end = last
		return true
	}
	r.lookInto(filepath.Dir(r.folder))
	now, err := os.Lstat(r.folder)
	return err == nil && os.SameFile(r.info, now)
}

// onlyDots says whether nothing is left of a path but empty parts.
func onlyDots(rest []string) bool {
	for _, name := range rest {
		if name != "" && name != "." {
			return false
		}
	}
	return true
}
