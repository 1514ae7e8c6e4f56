package blueprint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is the number of symbolic links that the kernel follows in a path.
const maxLinks = 40

// followed is what an absolute path leads to.
type followed struct {
	final  string // without links; as far as it is known if closed is set
	closed string // the first folder that the user may not enter; "": none
}

// follow resolves an absolute path step by step, as the user would. It returns false if it cannot:
// a file is missing, or this process may not enter a folder that the user may.
func (r *Reader) follow(path string) (to followed, ok bool) {
	at, links := "/", 0
	for names := split(path); len(names) > 0; {
		if allowed, known := r.may(at, 1); known && !allowed {
			return followed{filepath.Join(append([]string{at}, names...)...), at}, true
		}
		next := filepath.Join(at, names[0])
		names = names[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return followed{}, false
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return followed{}, false
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		names = append(split(target), names...)
	}
	return followed{final: at}, true
}

// split returns the names of a path, without empty ones.
func split(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == filepath.Separator })
}

// ownFolder is the folder of Outrider's own files.
const ownFolder = "/etc/outrider"

// ours reports whether a path is Outrider's own.
func ours(path string) bool { return path == ownFolder || strings.HasPrefix(path, ownFolder+"/") }

// barred says that the user may not enter a folder on the way to a file. Folders of others stay as
// they are: certbot's are closed because of the keys in them.
func (r *Reader) barred(path string, to followed) string {
	why := fmt.Sprintf("the user may not enter %s; ", to.closed)
	if to.final != path {
		why = "it leads to " + to.final + ", and " + why
	}
	if ours(to.closed) {
		why += "chmod o+x " + to.closed
	} else {
		why += r.copyOf(path, to.final)
	}
	return fmt.Sprintf("user %s cannot read %s: %s", r.name, path, why)
}

// copyOf returns the command that gives the user a copy of a file that others use as well, or
// replace. final is where path leads to.
func (r *Reader) copyOf(path, final string) string {
	from, to, what := path, filepath.Join(ownFolder, filepath.Base(path)),
		"install a copy, also after each change, and name it"
	if path != final && ours(path) {
		from, to, what = final, path, "replace the link by a copy, also after each change"
	}
	return fmt.Sprintf("%s: install -o %s -m 400 %s %s (\"outrider example show certbot\" has a "+
		"deploy hook for certbot)", what, r.name, from, to)
}
