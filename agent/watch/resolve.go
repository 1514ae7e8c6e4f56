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

// point is a name in a folder (of a path free of symbolic links) on which a path depends: if something happens to it,
// the path may lead elsewhere.
type point struct{ folder, name string }

// resolution is where a path leads.
type resolution struct {
	points []point
	real   string      // free of symbolic links; "" where the path leads nowhere
	info   fs.FileInfo // of real; nil where the path leads nowhere
	err    error       // why it leads nowhere, where that is not fs.ErrNotExist
}

// resolve follows path, relative to folder, link by link. look is called with each folder before anything in it is
// looked at, so that a change after the look is not missed.
func resolve(folder, path string, look func(folder string)) resolution {
	var result resolution
	rest := strings.Split(path, "/")
	links := 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			folder = filepath.Dir(folder) // right, since folder is free of links
			continue
		}
		look(folder)
		result.points = append(result.points, point{folder, name})
		here := filepath.Join(folder, name)
		info, err := os.Lstat(here)
		if err != nil {
			if !os.IsNotExist(err) {
				result.err = err
			}
			return result
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				result.err = &fs.PathError{Op: "resolve", Path: path, Err: unix.ELOOP}
				return result
			}
			target, err := os.Readlink(here)
			if err != nil {
				return result // replaced in this moment: its event comes
			}
			if filepath.IsAbs(target) {
				folder = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
		case info.IsDir():
			folder = here
		case onlyDots(rest):
			result.real, result.info = here, info
			return result
		default:
			return result // a file where a folder should be
		}
	}
	info, err := os.Lstat(folder)
	if err != nil {
		return result
	}
	result.real, result.info = folder, info
	return result
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
