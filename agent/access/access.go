// Package access finds out what a user may read, by the kernel's own rules (modes, access control
// lists, read-only mounts). The result may be outdated at once: it serves messages and refusals.
package access

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Result says whether a user may read a file, or list and enter a directory.
type Result struct {
	Readable bool `json:"readable,omitempty"`
	// Closed is the first directory on the way that the user may not enter; "": none.
	Closed string `json:"closed,omitempty"`
	// Final is the path without symbolic links, as far as the user can resolve them.
	Final string `json:"final,omitempty"`
	// Device and Inode identify the file, if it could be reached.
	Device uint64 `json:"device,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
}

// Check checks an absolute path for the user of this process. It does not open the file for
// reading, so it has no effect on a device or a FIFO. It may block. The error is why the result is
// unknown: the file is missing, for example.
func Check(path string) (Result, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		return closedDirectory(path)
	}
	if err != nil {
		return Result{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	// This is the opened file even if the path leads to another one by now.
	opened := fmt.Sprintf("/proc/self/fd/%d", fd)
	var status unix.Stat_t
	if err := unix.Fstat(fd, &status); err != nil {
		return Result{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	final, err := os.Readlink(opened)
	if err != nil {
		return Result{}, err
	}
	rights := uint32(unix.R_OK)
	if status.Mode&unix.S_IFMT == unix.S_IFDIR {
		rights |= unix.X_OK
	}
	// The real user is checked, which is also the effective one. With AT_EACCESS, kernels before
	// 5.8 would need an emulation that knows nothing but the mode.
	err = unix.Access(opened, rights)
	if err != nil && !errors.Is(err, unix.EACCES) {
		return Result{}, &os.PathError{Op: "access", Path: path, Err: err}
	}
	return Result{Readable: err == nil, Final: final, Device: status.Dev, Inode: status.Ino}, nil
}

// maxLinks is the number of symbolic links that the kernel follows in a path.
const maxLinks = 40

// closedDirectory returns the result for a path with a directory that the user may not enter.
func closedDirectory(path string) (Result, error) {
	at, links := "/", 0
	for names := split(path); len(names) > 0; {
		if errors.Is(unix.Access(at, unix.X_OK), unix.EACCES) {
			final := filepath.Join(append([]string{at}, names...)...)
			return Result{Closed: at, Final: final}, nil
		}
		next := filepath.Join(at, names[0])
		names = names[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return Result{}, err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return Result{}, err
		}
		if links++; links > maxLinks {
			return Result{}, &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		names = append(split(target), names...)
	}
	return Result{}, fmt.Errorf("%s has just become accessible", path)
}

// split returns the names of a path, without empty ones.
func split(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == filepath.Separator })
}
