package store

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// fingerprint tells without reading whether a file changed.
type fingerprint struct {
	device, inode uint64
	size          int64
	modified      time.Time
	changed       time.Time // ctime: also moves where the modification time is set back
}

func fingerprintOf(info fs.FileInfo) fingerprint {
	f := fingerprint{size: info.Size(), modified: info.ModTime()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		f.device, f.inode, f.changed = s.Dev, s.Ino, time.Unix(s.Ctim.Unix())
	}
	return f
}

// recent is how young a change may be so that another one could follow with the same time stamps (a
// kernel tick is at most 10 ms).
const recent = 50 * time.Millisecond

// fresh tells that a file read at the given time can have changed since without a trace.
func (f fingerprint) fresh(read time.Time) bool {
	return f.modified.After(read.Add(-recent)) || f.changed.After(read.Add(-recent))
}

// isMesh tells whether a file below a directory is read: YAML and JSON, not hidden (editors' files,
// a config map's links).
func isMesh(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// scan calls found for every file that root is or holds, folders within folders and symbolic links
// included. A root that does not exist is an error; what vanishes below it meanwhile is not.
func scan(root string, found func(path string, info fs.FileInfo)) error {
	info, err := os.Stat(root)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		found(root, info)
		return nil
	}
	return scanDirectory(root, info, map[[2]uint64]bool{}, found)
}

func scanDirectory(directory string, info fs.FileInfo, above map[[2]uint64]bool,
	found func(string, fs.FileInfo)) error {
	self := fingerprintOf(info)
	identity := [2]uint64{self.device, self.inode}
	if above[identity] {
		return nil // a link to a folder it is in
	}
	above[identity] = true
	defer delete(above, identity)
	entries, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	var failed error // the first; the rest is looked through all the same
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") || entry.Type().IsRegular() &&
			!isMesh(entry.Name()) {
			continue
		}
		path := filepath.Join(directory, entry.Name())
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrPermission):
			failed = cmp.Or(failed, err)
		case err != nil: // gone, or a link to nothing
		case info.IsDir():
			if err := scanDirectory(path, info, above, found); err != nil &&
				!errors.Is(err, fs.ErrNotExist) {
				failed = cmp.Or(failed, err)
			}
		case info.Mode().IsRegular() && isMesh(entry.Name()):
			found(path, info)
		}
	}
	return failed
}
