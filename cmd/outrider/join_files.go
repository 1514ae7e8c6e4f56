package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// fileChange is a change of several files that can be undone.
type fileChange struct {
	before  []targetFile // state before the change; nil text: the file did not exist
	folders []string     // folders that did not exist
}

// save records the state of files and their folders before they change.
func (c *fileChange) save(paths ...string) error {
	for _, path := range paths {
		folder := filepath.Dir(path)
		if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
			c.folders = append(c.folders, folder)
		}
		was := targetFile{Path: path}
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		default:
			if was.text, err = os.ReadFile(path); err != nil {
				return err
			}
			if was.text == nil {
				was.text = []byte{}
			}
			was.mode, was.uid, was.gid = info.Mode().Perm(), int(status(info).Uid), groupOf(info)
		}
		c.before = append(c.before, was)
	}
	return nil
}

// undo restores all files in reverse order, so that the drop-in, which refers to the others, is
// restored first.
func (c *fileChange) undo() error {
	var errs []error
	for i := len(c.before) - 1; i >= 0; i-- {
		was := c.before[i]
		if was.text != nil {
			errs = append(errs, write(was))
		} else {
			errs = append(errs, remove(was.Path))
		}
	}
	for _, folder := range c.folders {
		_ = os.Remove(folder) // fails if the folder has other files
	}
	return errors.Join(errs...)
}

// remove removes a file, which need not exist.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
