package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// What is watched of a path. A folder on the way to a file matters if it is replaced, or if its mode
// changes; the other entries of a folder matter only where a scan looked for names.
const (
	watchFile    = unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_MODIFY
	watchWay     = watchFile&^unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	watchEntries = watchWay | unix.IN_CREATE | unix.IN_MODIFY
)

// What an event says of its path.
const (
	gone    = unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT
	created = unix.IN_CREATE | unix.IN_MOVED_TO
)

// event is an event of a path. A path "" means that events were lost.
type event struct {
	path string
	mask uint32
}

// inotify is an inotify instance. Its methods may be called by any goroutine. It must not watch what
// is on a file system that may hang, as its lock is held meanwhile.
type inotify struct {
	file *os.File

	mu      sync.Mutex
	paths   map[int32][]string // by watch descriptor, which belongs to an inode
	watches map[string]int32
}

func openInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &inotify{file: os.NewFile(uintptr(fd), "inotify"), paths: map[int32][]string{},
		watches: map[string]int32{}}, nil
}

// add watches path for the events of mask, beside those that are watched already.
func (i *inotify) add(path string, mask uint32) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var watch int32
	err := i.control(func(fd int) error {
		found, err := unix.InotifyAddWatch(fd, path, mask|unix.IN_MASK_ADD|unix.IN_DONT_FOLLOW)
		watch = int32(found) //nolint:gosec // the kernel's type
		return err
	})
	if err != nil {
		return err
	}
	if before, ok := i.watches[path]; ok && before != watch {
		i.drop(path)
	}
	if !slices.Contains(i.paths[watch], path) {
		i.paths[watch] = append(i.paths[watch], path)
	}
	i.watches[path] = watch
	return nil
}

// remove ends the watch of path, if there is one.
func (i *inotify) remove(path string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.drop(path)
}

// drop is remove for callers that hold mu.
func (i *inotify) drop(path string) {
	watch, ok := i.watches[path]
	if !ok {
		return
	}
	delete(i.watches, path)
	others := slices.DeleteFunc(i.paths[watch], func(other string) bool { return other == path })
	if i.paths[watch] = others; len(others) > 0 {
		return
	}
	delete(i.paths, watch)
	_ = i.control(func(fd int) error { // fails if the kernel has ended the watch
		_, err := unix.InotifyRmWatch(fd, uint32(watch)) //nolint:gosec // as above
		return err
	})
}

func (i *inotify) control(call func(fd int) error) error {
	raw, err := i.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = call(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// read passes each event to handle until the instance is closed. Then it returns nil.
func (i *inotify) read(handle func(event)) error {
	buffer := make([]byte, 16<<10)
	for {
		n, err := i.file.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			watch := int32(binary.NativeEndian.Uint32(rest)) //nolint:gosec // the kernel's type
			mask := binary.NativeEndian.Uint32(rest[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			name := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00"))
			rest = rest[end:]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				handle(event{})
				continue
			}
			for _, path := range i.pathsOf(watch, mask) {
				if name != "" {
					path = join(path, name)
				}
				handle(event{path, mask})
			}
		}
	}
}

// pathsOf returns the paths of a watch, and forgets them if the kernel has ended the watch.
func (i *inotify) pathsOf(watch int32, mask uint32) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	paths := slices.Clone(i.paths[watch])
	if mask&unix.IN_IGNORED != 0 {
		delete(i.paths, watch)
		for _, path := range paths {
			delete(i.watches, path)
		}
		return nil
	}
	return paths
}

// join is filepath.Join for a clean folder.
func join(folder, name string) string {
	if folder == "/" {
		return folder + name
	}
	return folder + "/" + name
}
