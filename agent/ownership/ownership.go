// Package ownership checks that only trusted users can replace a file.
package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxLinks is the number of symbolic links that the kernel follows in a path.
const maxLinks = 40

// CheckPath returns an error if a user other than the owners could replace the file at an absolute
// path. Every directory and symbolic link on the way to the file, and the file itself, must belong
// to one of the owners and be writable for its owner only. The result therefore cannot become wrong
// by a change that another user makes.
func CheckPath(path string, owners ...int) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s: not an absolute path", path)
	}
	if err := CheckFile("/", owners...); err != nil {
		return err
	}
	at, names, links := "/", split(path), 0
	for len(names) > 0 {
		next := filepath.Join(at, names[0])
		names = names[1:]
		info, err := os.Lstat(next)
		if err == nil {
			err = check(next, info, owners)
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		names = append(split(target), names...)
	}
	return nil
}

// split returns the non-empty names of a path.
func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// CheckFile returns an error if the file or directory to which path resolves does not belong to one
// of the owners, or if other users may write to it.
func CheckFile(path string, owners ...int) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return check(path, info, owners)
}

// check checks owner and mode of one file. If an access control list lets other users write, the
// mode has the write bit of the group. In a directory with the sticky bit, users cannot replace
// files of others.
func check(path string, info fs.FileInfo, owners []int) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New(path + ": its owner is unknown")
	case !slices.Contains(owners, int(owner.Uid)):
		chown := "chown"
		if info.Mode()&fs.ModeSymlink != 0 {
			chown = "chown -h" // changes the owner of the link, not of its target
		}
		return fmt.Errorf("%s: belongs to user %d, who could replace what is read from it; "+
			"%s root %s", path, owner.Uid, chown, path)
	case info.Mode()&fs.ModeSymlink == 0 && info.Mode()&0o022 != 0 &&
		(!info.IsDir() || info.Mode()&fs.ModeSticky == 0):
		return fmt.Errorf("%s: other users may write to it and replace what is read from it; "+
			"chmod go-w %s", path, path)
	}
	return nil
}
