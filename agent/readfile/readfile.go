// Package readfile reads files and directories that other users may replace or grow.
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

// ReadDirectory returns at most most+1 entries of a directory, sorted by name. They may come with
// an error.
func ReadDirectory(path string, most int) ([]fs.DirEntry, error) {
	// a FIFO that takes the directory's place must not be waited for
	directory, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = directory.Close() }()
	entries, err := directory.ReadDir(most + 1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

// flags have a FIFO or device opened, too, but not waited for.
const flags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// OpenRegular opens a regular file, following symbolic links. It does not wait for a FIFO or a
// device.
func OpenRegular(path string) (*os.File, error) { return regular(os.OpenFile(path, flags, 0)) }

// regular returns an error and closes the file unless it is regular.
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

// Read is OpenRegular for the content of a file. One of more than most bytes is an error.
func Read(path string, most int64) ([]byte, error) { return content(most)(OpenRegular(path)) }

// ReadIn is Read for a file in a directory of another user. A link out of the directory is an
// error.
func ReadIn(directory *os.Root, name string, most int64) ([]byte, error) {
	return content(most)(regular(directory.OpenFile(name, flags, 0)))
}

func content(most int64) func(*os.File, error) ([]byte, error) {
	return func(file *os.File, err error) ([]byte, error) {
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // only read
		text, err := io.ReadAll(io.LimitReader(file, most+1))
		if err == nil && int64(len(text)) > most {
			return nil, fmt.Errorf("%s has more than %d bytes", file.Name(), most)
		}
		return text, err
	}
}
