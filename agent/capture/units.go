package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unit is the control group of a systemd unit that runs.
type Unit struct {
	Name  string `json:"name"`
	Path  string `json:"path"`  // below the root of cgroup v2, without a leading slash
	ID    uint64 `json:"id"`    // inode of the directory
	Level int    `json:"level"` // components of Path
}

// maxDepth bounds the slices that are searched for units.
const maxDepth = 16

// unitWatch finds the control groups of units and notices when units start and stop, without D-Bus.
// It searches slices only, so units of users' service managers are not found. It lives as long as
// the process.
type unitWatch struct {
	root    string
	file    *os.File      // inotify; watches every slice; nil: none
	changed chan struct{} // capacity 1
}

// cgroupMount returns where cgroup v2 is mounted.
func cgroupMount() (string, error) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			return root, nil
		}
	}
	return "", errors.New("capture.units: cgroup v2 is not mounted on this host")
}

func newUnitWatch() (*unitWatch, error) {
	root, err := cgroupMount()
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &unitWatch{root: root, file: os.NewFile(uintptr(fd), "inotify"),
		changed: make(chan struct{}, 1)}
	go func() {
		buffer := make([]byte, 16<<10)
		for {
			if _, err := w.file.Read(buffer); err != nil {
				return
			}
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	}()
	return w, nil
}

// find returns the running units among names, sorted by path, and watches all slices.
func (w *unitWatch) find(names []string) ([]Unit, error) {
	var found []Unit
	var search func(path string, depth int) error
	search = func(path string, depth int) error {
		folder := filepath.Join(w.root, path)
		// Watch before reading the directory, so that later changes cause an event.
		if err := w.watch(folder); err != nil {
			return err
		}
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			below := filepath.Join(path, e.Name())
			if slices.Contains(names, e.Name()) {
				info, err := e.Info()
				if err != nil {
					continue // the unit has just stopped
				}
				if status, ok := info.Sys().(*syscall.Stat_t); ok {
					found = append(found, Unit{e.Name(), below, status.Ino, depth + 1})
				}
			}
			if strings.HasSuffix(e.Name(), ".slice") && depth < maxDepth {
				if err := search(below, depth+1); err != nil &&
					!errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		return nil
	}
	if err := search("", 0); err != nil {
		return nil, fmt.Errorf("capture.units: %w", err)
	}
	return found, nil
}

func (w *unitWatch) watch(folder string) error {
	if w.file == nil {
		return nil
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	if err := raw.Control(func(fd uintptr) {
		_, failure = unix.InotifyAddWatch(int(fd), folder,
			unix.IN_CREATE|unix.IN_DELETE|unix.IN_ONLYDIR)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("inotify_add_watch", failure)
}
