package watch

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"strings"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// folders are the folders that inotify watches. The Watcher's lock guards it.
type folders struct {
	logger  *slog.Logger
	inner   *fsnotify.Watcher // nil before Run and without inotify
	add     func(path string) error
	watched map[string]stamp // with the identity at the time of the watch
	// folders that cannot be watched; with "/..." paths that hold too much; "": the limit of watches
	// is reached
	warned map[string]bool
}

// watch watches the folder that has this path now.
func (f *folders) watch(path string) {
	now := lstat(path).identity()
	if f.inner == nil || f.has(path) && f.watched[path] == now {
		return
	}
	f.forget(path)
	err := f.add(path)
	switch {
	case err == nil:
		f.watched[path] = now
		delete(f.warned, path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		// Removed in this moment: the next check looks for what took its place.
	default:
		f.warn(path, err)
	}
}

// warn reports a folder that cannot be watched, once, and the limit of watches once for all.
func (f *folders) warn(path string, err error) {
	key, fix := path, "name a folder that the user of this process may read"
	if errors.Is(err, unix.ENOSPC) {
		key, fix = "", "raise fs.inotify.max_user_watches (sysctl)"
	}
	if !f.warned[key] {
		f.warned[key] = true
		f.logger.Warn("cannot watch a folder, checking its files periodically; "+fix,
			"folder", path, "interval", checkInterval, "error", err)
	}
}

// warnIncomplete reports a path of Set of which a scan did not see everything, once.
func (f *folders) warnIncomplete(path string) {
	if key := path + "/..."; !f.warned[key] {
		f.warned[key] = true
		f.logger.Warn("too many files, folders or links below a watched path, changes of some are "+
			"not noticed; remove some", "path", path, "limit", maxSteps)
	}
}

// has reports whether inotify watches path.
func (f *folders) has(path string) bool {
	_, ok := f.watched[path]
	return ok
}

// forget ends the watch of path, if there is one.
func (f *folders) forget(path string) {
	if f.has(path) {
		delete(f.watched, path)
		_ = f.inner.Remove(path) // fails if the kernel has ended the watch already
	}
}

// sweep ends the watch of all folders that are not needed.
func (f *folders) sweep(needed map[string]bool) {
	for path := range f.watched {
		if !needed[path] {
			f.forget(path)
		}
	}
	maps.DeleteFunc(f.warned, func(path string, _ bool) bool {
		return path != "" && !needed[strings.TrimSuffix(path, "/...")]
	})
}
