package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bounds of what root reads in a folder of another user.
const (
	maxEntries = 10_000 // looked at in one folder
	maxRecord  = 64     // bytes of a file that is read
)

// folder is a directory that another user may write to. root accesses it by descriptor and plain
// names, follows no symbolic link in it, and opens only regular files.
type folder struct {
	path string // for messages
	file *os.File
}

// openFolder opens a directory; nil if there is none. The directories above path must be root's.
func openFolder(path string) (*folder, error) { return openFolderAt(unix.AT_FDCWD, path, path) }

// sub opens a directory in the folder; nil if there is none.
func (f *folder) sub(name string) (*folder, error) {
	if f == nil {
		return nil, nil
	}
	return openFolderAt(f.fd(), name, filepath.Join(f.path, name))
}

func openFolderAt(at int, name, path string) (*folder, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC,
		0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("clean up: open directory %s: %w", path, err)
	}
	return &folder{path: path, file: os.NewFile(uintptr(fd), path)}, nil
}

func (f *folder) fd() int { return int(f.file.Fd()) }

func (f *folder) close() {
	if f != nil {
		_ = f.file.Close()
	}
}

// names returns the entries that match a pattern of path.Match, at most maxEntries of all entries.
func (f *folder) names(pattern string) ([]string, error) {
	if f == nil {
		return nil, nil
	}
	if _, err := f.file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("clean up: read directory %s: %w", f.path, err)
	}
	names, err := f.file.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("clean up: read directory %s: %w", f.path, err)
	}
	return slices.DeleteFunc(names, func(name string) bool {
		matched, err := filepath.Match(pattern, name)
		return err != nil || !matched
	}), nil
}

// stat does not follow a symbolic link.
func (f *folder) stat(name string) (unix.Stat_t, error) {
	var status unix.Stat_t
	err := unix.Fstatat(f.fd(), name, &status, unix.AT_SYMLINK_NOFOLLOW)
	return status, err
}

// remove removes an entry that is not a directory, and reports whether it existed.
func (f *folder) remove(name string) (bool, error) {
	err := unix.Unlinkat(f.fd(), name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("clean up: remove %s: %w", filepath.Join(f.path, name), err)
	}
	return true, nil
}

var errNotRegular = errors.New("not a regular file of one name")

// openRegular opens a file for reading. For a FIFO, a device, or a symbolic or hard link the error
// is errNotRegular; for a file with a lease it is unix.EWOULDBLOCK.
func (f *folder) openRegular(name string) (*os.File, error) {
	status, path, err := f.pin(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = path.Close() }()
	if status.Mode&unix.S_IFMT != unix.S_IFREG || status.Nlink != 1 {
		return nil, fmt.Errorf("%s: %w", path.Name(), errNotRegular)
	}
	fd, err := unix.Open(pinned(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path.Name(), err)
	}
	return os.NewFile(uintptr(fd), path.Name()), nil
}

// pin opens an entry with O_PATH, so that it can be examined and then used by the name that pinned
// returns, even if its own name changes.
func (f *folder) pin(name string) (unix.Stat_t, *os.File, error) {
	var status unix.Stat_t
	path := filepath.Join(f.path, name)
	fd, err := unix.Openat(f.fd(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return status, nil, fmt.Errorf("open %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	if err := unix.Fstat(fd, &status); err != nil {
		_ = file.Close()
		return status, nil, fmt.Errorf("stat %s: %w", path, err)
	}
	return status, file, nil
}

func pinned(file *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(file.Fd())) }
