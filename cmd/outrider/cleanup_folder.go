package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds on what root reads in a folder that belongs to another user.
const (
	maxEntries = 10_000 // names read in one folder
	maxRecord  = 64     // bytes read from one file
)

// folder is a directory that another user may write to. os.Root confines all operations to it, even
// if that user creates symbolic links.
type folder struct {
	path string // for messages
	root *os.Root
}

// openFolder opens a directory; nil if it does not exist. The directories above it must be writable
// for root only.
func openFolder(path string) (*folder, error) {
	parent, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("clean up: %w", err)
	}
	above := &folder{filepath.Dir(path), parent}
	defer above.close()
	return above.sub(filepath.Base(path))
}

// sub opens a directory in the folder; nil if the folder or the directory does not exist.
func (f *folder) sub(name string) (*folder, error) {
	if f == nil {
		return nil, nil
	}
	root, err := f.root.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("clean up: open directory in %s: %w", f.path, err)
	}
	return &folder{filepath.Join(f.path, name), root}, nil
}

func (f *folder) close() {
	if f != nil {
		_ = f.root.Close()
	}
}

// has reports whether the folder exists and has an entry with a name.
func (f *folder) has(name string) bool {
	if f == nil {
		return false
	}
	_, err := f.root.Lstat(name)
	return err == nil
}

// names returns the names that match a pattern of path.Match. It reads at most maxEntries names.
func (f *folder) names(pattern string) ([]string, error) {
	if f == nil {
		return nil, nil
	}
	directory, err := f.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("clean up: read directory %s: %w", f.path, err)
	}
	defer func() { _ = directory.Close() }()
	names, err := directory.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("clean up: read directory %s: %w", f.path, err)
	}
	return slices.DeleteFunc(names, func(name string) bool {
		matched, err := filepath.Match(pattern, name)
		return err != nil || !matched
	}), nil
}

// remove removes a file or an empty directory, and reports whether it existed.
func (f *folder) remove(name string) (bool, error) {
	err := f.root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("clean up: in %s: %w", f.path, err)
	}
	return true, nil
}

var errNotRegular = errors.New("not a regular file, or one with several hard links")

// openRegular opens a file for reading. The error is errNotRegular for a FIFO, a device, a symbolic
// link or a file with several hard links. It is unix.EWOULDBLOCK for a file on which another
// process has a lease.
func (f *folder) openRegular(name string) (*os.File, error) {
	path := filepath.Join(f.path, name)
	found, err := f.root.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if !found.Mode().IsRegular() || status(found).Nlink != 1 {
		return nil, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	file, err := f.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if opened, err := file.Stat(); err != nil || !os.SameFile(found, opened) {
		_ = file.Close()
		return nil, fmt.Errorf("%s was replaced: %w", path, errNotRegular)
	}
	return file, nil
}

// planted returns an error if a file belongs to root, but its folder belongs to another user, who
// must have placed a hard link to the file. The file may have only this one link, if root has
// replaced the original.
func (f *folder) planted(file *os.File) error {
	folder, err := f.root.Stat(".")
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && status(info).Uid == 0 && status(folder).Uid != 0 {
		err = fmt.Errorf("%s belongs to root, but its directory does not", file.Name())
	}
	return err
}

// pin opens an entry with O_PATH: the descriptor continues to refer to the same file if the entry
// is replaced.
func (f *folder) pin(name string) (*os.File, error) {
	directory, err := f.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = directory.Close() }()
	fd, err := unix.Openat(int(directory.Fd()), name,
		unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(f.path, name)), nil
}

func status(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }
