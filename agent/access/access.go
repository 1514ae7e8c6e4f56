// Package access determines which files a user may read. The kernel decides, so that modes, access
// control lists and read-only mounts count. The result may be outdated at once; use it for messages
// and refusals only.
package access

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Result reports whether a user may read a file, list and enter a directory, or connect to a
// socket.
type Result struct {
	Readable bool `json:"readable,omitempty"`
	// DeniedDirectory is the first directory of the path that the user may not enter; "": none.
	DeniedDirectory string `json:"closed,omitempty"`
	// ResolvedPath is the path without symbolic links, as far as the user can resolve them.
	ResolvedPath string `json:"final,omitempty"`
	// Device and Inode identify the file, if it could be reached.
	Device uint64 `json:"device,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
}

// Check checks an absolute path for the user of this process. It does not open the file for
// reading, so a device or FIFO is not affected. It may block. An error means that the access could
// not be determined, for example because the file is missing.
func Check(path string) (Result, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		return closedDirectory(path)
	}
	if err != nil {
		return Result{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	// The link refers to the opened file even if its path has been replaced since.
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
	switch status.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		rights |= unix.X_OK
	case unix.S_IFSOCK:
		rights = unix.W_OK
	}
	// Access checks the real user ID, which equals the effective one. With AT_EACCESS on a kernel
	// before 5.8, package unix would emulate the check from the mode bits alone.
	err = unix.Access(opened, rights)
	if err != nil && !errors.Is(err, unix.EACCES) {
		return Result{}, &os.PathError{Op: "access", Path: path, Err: err}
	}
	return Result{Readable: err == nil, ResolvedPath: final, Device: status.Dev,
		Inode: status.Ino}, nil
}

// maxLinks is the number of symbolic links that the kernel follows in a path.
const maxLinks = 40

// closedDirectory returns the result for a path with a directory that the user may not enter.
func closedDirectory(path string) (Result, error) {
	at, links := "/", 0
	for names := split(path); len(names) > 0; {
		if errors.Is(unix.Access(at, unix.X_OK), unix.EACCES) {
			final := filepath.Join(append([]string{at}, names...)...)
			return Result{DeniedDirectory: at, ResolvedPath: final}, nil
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
	return Result{}, fmt.Errorf("%s: a directory or link in the path was replaced during the "+
		"check", path)
}

// split returns the names of a path, without empty ones.
func split(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == filepath.Separator })
}
