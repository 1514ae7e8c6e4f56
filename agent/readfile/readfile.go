// Package readfile reads files and directories that other users may replace, grow or make hang.
package readfile

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Entries returns at most most+1 entries of a directory, sorted by name. They may come with an
// error.
func Entries(path string, most int) ([]fs.DirEntry, error) {
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
