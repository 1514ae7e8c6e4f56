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

// folders are the paths that inotify watches. Its methods may be called by any goroutine. Holding
// mu during system calls costs nothing, since fsnotify holds its own lock then, too.
type folders struct {
	logger *slog.Logger

	mu      sync.Mutex
	inner   *fsnotify.Watcher       // nil before Run, and if inotify is unavailable
	add     func(path string) error // of inner; replaced in tests
	watched map[string]stamp        // identity of each path when its watch began
	// shared has the paths of each identity. fsnotify is given the first of them only: it has one
	// path per inode, and panics when a path that has become another name of a watched inode is
	// added again.
	shared map[stamp][]string
	// warned has what was warned of: folders that cannot be watched; paths with "/..." appended
	// that contain too much; "" for the limit of watches.
	warned map[string]bool
}

// watch watches the file or folder at path. It returns false if that must be polled instead. It may
// block. It warns of a folder that may not be listed only if its entries matter.
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
	case absence(err): // removed or replaced: its folder reports an event
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

// addOnly makes fsnotify watch path, or fails if path has another identity in the meantime.
func (f *folders) addOnly(path string, identity stamp) error {
	err := f.add(path)
	if err == nil && lstat(path).identity() != identity {
		_ = f.inner.Remove(path) // fails if inotify knows the folder by another path
		err = fs.ErrNotExist
	}
	return err
}

// names returns all watched paths of an event's file, whose inode may have several.
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

// join is filepath.Join for a clean folder.
func join(folder, name string) string {
	if folder == "/" {
		return folder + name
	}
	return folder + "/" + name
}

// silentTypes are the file systems that report no changes to inotify, or only those made by this
// host.
var silentTypes = map[uint32]bool{
	unix.AFS_FS_MAGIC: true, unix.AFS_SUPER_MAGIC: true, unix.CEPH_SUPER_MAGIC: true,
	unix.CIFS_SUPER_MAGIC: true, unix.CODA_SUPER_MAGIC: true, unix.FUSE_SUPER_MAGIC: true,
	unix.NCP_SUPER_MAGIC: true, unix.NFS_SUPER_MAGIC: true, unix.OCFS2_SUPER_MAGIC: true,
	unix.SMB2_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true, unix.V9FS_MAGIC: true,
	unix.AUTOFS_SUPER_MAGIC: true, unix.PROC_SUPER_MAGIC: true, unix.SYSFS_MAGIC: true,
	0x01161970: true, 0x0bd00bd0: true, 0x786f4256: true, 0x47504653: true, // GFS2, Lustre, vboxsf, GPFS
}

// silent reports whether inotify does not report all changes on the file system of path.
func silent(path string) bool {
	var found unix.Statfs_t
	return unix.Statfs(path, &found) == nil && silentTypes[uint32(found.Type)] //nolint:gosec // 32 bits
}

// warn logs, once per folder, that it cannot be watched; and once only that the limit of watches is
// reached.
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

// warnIncomplete logs, once per path of Set, that a scan did not examine everything below it.
func (f *folders) warnIncomplete(path string) {
	if f.first(path + "/...") {
		f.logger.Warn("too many files, folders or links below watched path, missing some changes",
			"path", path, "limit", maxSteps, "fix", "remove some")
	}
}

// first reports whether key was not warned of before, and records it.
func (f *folders) first(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.warned[key]
	f.warned[key] = true
	return !before
}

// attach sets the fsnotify instance that watch uses; nil = none.
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

// drop is forget for callers that hold mu.
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
		_ = f.inner.Remove(path) // fails if the kernel has ended the watch
		for len(others) > 0 && f.addOnly(others[0], identity) != nil {
			delete(f.watched, others[0]) // removed: its folder reports an event
			others = others[1:]
		}
	}
	if f.shared[identity] = others; len(others) == 0 {
		delete(f.shared, identity)
	}
}

// remounted ends the watches at and below points: fsnotify does not report that the kernel has
// ended them.
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

// sweep ends the watch of all paths that are not needed.
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
