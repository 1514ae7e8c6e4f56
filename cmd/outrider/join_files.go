package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// fileChange records the state of several files, so that a change of them can be undone.
type fileChange struct {
	before  []targetFile // previous files; text is nil if the file did not exist
	folders []string     // folders that did not exist before
}

// save records the current state of files and of their folders.
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

// undo restores the files in reverse order. The last saved file, the drop-in, refers to the other
// ones, so it is restored first.
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
		_ = os.Remove(folder) // retains a folder that is not empty
	}
	return errors.Join(errs...)
}

// remove removes a file if it exists.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
