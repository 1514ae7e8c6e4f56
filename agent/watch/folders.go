package watch

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// folders are the paths that inotify watches. Its methods may be called by any goroutine.
type folders struct {
	logger *slog.Logger

	mu      sync.Mutex                           // not held during I/O
	inner   *inotify                             // nil before Run and without inotify
	add     func(path string, mask uint32) error // of inner; replaced in tests
	watched map[string]watched
	// folders that cannot be watched; with "/..." paths that hold too much; "": the limit of watches
	// is reached
	warned map[string]bool
}

// watched is a path that inotify watches.
type watched struct {
	identity stamp // at the time of the watch
	mask     uint32
}

// watch watches what has this path now. It returns false if that must be polled instead. It may
// block.
func (f *folders) watch(path string, mask uint32) bool {
	f.mu.Lock()
	inner, add, before := f.inner, f.add, f.watched[path]
	f.mu.Unlock()
	if inner == nil {
		return false
	}
	for {
		now := lstat(path).identity()
		if before.identity == now && before.mask&mask == mask {
			return true
		}
		if silent(path) {
			return false
		}
		switch err := add(path, mask); {
		case err == nil:
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			return true // removed, which is an event of the folder before
		default:
			if mask != watchWay || !errors.Is(err, fs.ErrPermission) {
				f.warn(path, err)
			}
			return false
		}
		if before.identity == now {
			mask |= before.mask
		}
		before = watched{now, mask}
		f.mu.Lock()
		f.watched[path] = before
		delete(f.warned, path)
		f.mu.Unlock()
		// Loop: it may have been replaced before it was watched.
	}
}

// silentTypes are the file systems that report no changes, or only those of this host.
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

// warn reports a folder that cannot be watched, once, and the limit of watches once for all.
func (f *folders) warn(path string, err error) {
	key, remedy := path, "name a folder that the user of this process may read"
	if errors.Is(err, unix.ENOSPC) {
		key, remedy = "", "raise fs.inotify.max_user_watches (sysctl)"
	}
	if f.first(key) {
		f.logger.Warn("cannot watch folder, polling its files", "folder", path,
			"interval", pollInterval, "remedy", remedy, "error", err)
	}
}

// warnIncomplete reports a path of Set of which a scan did not see everything, once.
func (f *folders) warnIncomplete(path string) {
	if f.first(path + "/...") {
		f.logger.Warn("too many files, folders or links below watched path, missing some changes",
			"path", path, "limit", maxSteps, "remedy", "remove some")
	}
}

// first reports whether key is to be warned of for the first time.
func (f *folders) first(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.warned[key]
	f.warned[key] = true
	return !before
}

// attach makes watch use an instance; nil: none.
func (f *folders) attach(inner *inotify) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inner = inner
	if inner != nil && f.add == nil {
		f.add = inner.add
	}
	clear(f.watched)
}

// forget ends the watch of path, if there is one.
func (f *folders) forget(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(path)
}

// drop is forget for callers that hold mu.
func (f *folders) drop(path string) {
	if _, ok := f.watched[path]; ok && f.inner != nil {
		delete(f.watched, path)
		f.inner.remove(path)
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
