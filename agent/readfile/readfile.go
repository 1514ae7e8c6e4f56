// Package readfile reads files and directories that other users may replace, or extend without
// limit.
package readfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// ReadDirectory returns at most maxEntries+1 entries of a directory, sorted by name. It may return
// entries together with an error.
func ReadDirectory(path string, maxEntries int) ([]fs.DirEntry, error) {
	// With O_DIRECTORY, opening fails instead of waiting if the path is a FIFO.
	directory, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = directory.Close() }()
	entries, err := directory.ReadDir(maxEntries + 1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

// With flags, opening a FIFO or device does not wait.
const flags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// OpenRegular opens a regular file, following symbolic links. For a FIFO or device it returns an
// error without waiting.
func OpenRegular(path string) (*os.File, error) { return regular(os.OpenFile(path, flags, 0)) }

// regular closes the file and returns an error if it is not a regular file.
func regular(file *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", file.Name())
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Read returns the content of a regular file. It returns an error if the file has more than
// maxBytes bytes.
func Read(path string, maxBytes int64) ([]byte,
	error) {
	return content(maxBytes)(OpenRegular(path))
}

// ReadIn is like Read for a file in a directory that another user owns. It returns an error for a
// symbolic link that leads out of the directory.
func ReadIn(directory *os.Root, name string, maxBytes int64) ([]byte, error) {
	return content(maxBytes)(regular(directory.OpenFile(name, flags, 0)))
}

func content(most int64) func(*os.File, error) ([]byte, error) {
	return func(file *os.File, err error) ([]byte, error) {
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		text, err := io.ReadAll(io.LimitReader(file, most+1))
		if err == nil && int64(len(text)) > most {
			return nil, fmt.Errorf("%s has more than %d bytes", file.Name(), most)
		}
		return text, err
	}
}
