package watch

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// folders are the paths that inotify watches. Its methods may be called by any goroutine. They hold
// mu while they call fsnotify. This costs no concurrency, because fsnotify locks its system calls,
// too.
type folders struct {
	logger *slog.Logger

	mu      sync.Mutex
	inner   *fsnotify.Watcher       // nil before Run, and if inotify is not available
	add     func(path string) error // inner.Add; replaced in tests
	watched map[string]stamp        // identity (device and inode) of each path when its watch began
	// shared has the paths of each identity. Only the first of them is added to fsnotify, which
	// stores one path per inode, and panics if a path that it has is added after the path became
	// another name of a watched inode.
	shared map[stamp][]string
	// warned has the reasons of warnings that were logged: paths of folders that cannot be watched;
	// paths with "/..." appended that contain too many entries; "" for the limit of watches.
	warned map[string]bool
}

// watch watches the file or folder at path. It returns false if the path must be polled instead. It
// may block. If the folder may not be listed, it warns only if the entries of the folder matter.
func (f *folders) watch(path string, entries bool) bool {
	now := lstat(path).identity()
	f.mu.Lock()
	inner, before := f.inner, f.watched[path]
	f.mu.Unlock()
	switch {
	case inner == nil:
		return false
	case before == now:
		return true
	case silent(path):
		return false
	}
	switch err := f.start(path, now); {
	case err == nil:
	case absence(err): // path was removed or replaced: inotify reports that for its folder
	default:
		if entries || !errors.Is(err, fs.ErrPermission) {
			f.warn(path, err)
		}
		return false
	}
	return true
}

// start begins the watch of path.
func (f *folders) start(path string, identity stamp) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(path)
	if len(f.shared[identity]) == 0 {
		if err := f.addOnly(path, identity); err != nil {
			return err
		}
	}
	f.watched[path] = identity
	f.shared[identity] = append(f.shared[identity], path)
	delete(f.warned, path)
	return nil
}

// addOnly adds path to fsnotify. It fails if path has another identity by then.
func (f *folders) addOnly(path string, identity stamp) error {
	err := f.add(path)
	if err == nil && lstat(path).identity() != identity {
		_ = f.inner.Remove(path) // fails if inotify watches the folder under another path
		err = fs.ErrNotExist
	}
	return err
}

// names returns all watched paths of the file to which an event belongs. There may be several,
// because the file or its folder has hard links or is mounted more than once.
func (f *folders) names(path string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []string{path}
	if identity, ok := f.watched[path]; ok {
		all = append(all, f.shared[identity]...)
	}
	if identity, ok := f.watched[filepath.Dir(path)]; ok {
		for _, folder := range f.shared[identity] {
			all = append(all, join(folder, filepath.Base(path)))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// join joins a folder, whose path is clean, and a name as filepath.Join does.
func join(folder, name string) string {
	if folder == "/" {
		return folder + name
	}
	return folder + "/" + name
}

// silentTypes are file systems that report no changes to inotify, or only changes made on this
// host.
var silentTypes = map[uint32]bool{
	unix.AFS_FS_MAGIC: true, unix.AFS_SUPER_MAGIC: true, unix.CEPH_SUPER_MAGIC: true,
	unix.CIFS_SUPER_MAGIC: true, unix.CODA_SUPER_MAGIC: true, unix.FUSE_SUPER_MAGIC: true,
	unix.NCP_SUPER_MAGIC: true, unix.NFS_SUPER_MAGIC: true, unix.OCFS2_SUPER_MAGIC: true,
	unix.SMB2_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true, unix.V9FS_MAGIC: true,
	unix.AUTOFS_SUPER_MAGIC: true, unix.PROC_SUPER_MAGIC: true, unix.SYSFS_MAGIC: true,
	0x01161970: true, 0x0bd00bd0: true, 0x786f4256: true, 0x47504653: true,
}

// silent reports whether path is on a file system that does not report all changes to inotify.
func silent(path string) bool {
	var found unix.Statfs_t
	return unix.Statfs(path, &found) == nil && silentTypes[uint32(found.Type)] //nolint:gosec // 32 bits
}

// warn logs once for each folder that it cannot be watched. It logs only once that the limit of
// watches is reached.
func (f *folders) warn(path string, err error) {
	key, fix := path, "name a folder that the user of this process may read"
	if errors.Is(err, unix.ENOSPC) {
		key, fix = "", "raise fs.inotify.max_user_watches (sysctl)"
	}
	if f.first(key) {
		f.logger.Warn("cannot watch folder, polling its files", "folder", path,
			"interval", pollInterval, "fix", fix, "error", err)
	}
}

// warnIncomplete logs, once for each path of SetPaths, that a scan did not examine everything below
// the path.
func (f *folders) warnIncomplete(path string) {
	if f.first(path + "/...") {
		f.logger.Warn(
			"too many files, folders or links below watched path, some changes stay undetected",
			"path", path, "limit", maxSteps, "fix", "remove some of them")
	}
}

// first records a warning by its key, and reports whether it was not recorded before.
func (f *folders) first(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.warned[key]
	f.warned[key] = true
	return !before
}

// attach sets the fsnotify instance that watch uses; nil: none.
func (f *folders) attach(inner *fsnotify.Watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inner = inner
	if inner != nil && f.add == nil {
		f.add = inner.Add
	}
	clear(f.watched)
	clear(f.shared)
}

// forget ends the watch of path, if there is one.
func (f *folders) forget(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(path)
}

// drop does the same as forget. The caller must hold mu.
func (f *folders) drop(path string) {
	identity, ok := f.watched[path]
	if !ok || f.inner == nil {
		return
	}
	delete(f.watched, path)
	others := f.shared[identity]
	known := others[0] == path
	others = slices.DeleteFunc(others, func(other string) bool { return other == path })
	if known {
		_ = f.inner.Remove(path) // fails if the kernel has ended the watch already
		for len(others) > 0 && f.addOnly(others[0], identity) != nil {
			// this path was removed, too: inotify reports that for its folder
			delete(f.watched, others[0])
			others = others[1:]
		}
	}
	if f.shared[identity] = others; len(others) == 0 {
		delete(f.shared, identity)
	}
}

// remounted ends the watches at and below mount points. The kernel has ended them, which fsnotify
// does not report.
func (f *folders) remounted(points []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path := range f.watched {
		if slices.ContainsFunc(points, func(point string) bool {
			return path == point || strings.HasPrefix(path, join(point, ""))
		}) {
			f.drop(path)
		}
	}
}

// sweep ends the watches of all paths that are not in needed.
func (f *folders) sweep(needed map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path := range f.watched {
		if !needed[path] {
			f.drop(path)
		}
	}
	maps.DeleteFunc(f.warned, func(path string, _ bool) bool {
		return path != "" && !needed[strings.TrimSuffix(path, "/...")]
	})
}
