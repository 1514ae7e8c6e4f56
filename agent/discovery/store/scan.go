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

// fingerprint identifies a version of a file without reading it.
type fingerprint struct {
	device, inode uint64
	size          int64
	modified      time.Time
	changed       time.Time // ctime, which also detects a reset modification time
}

func fingerprintOf(info fs.FileInfo) fingerprint {
	f := fingerprint{size: info.Size(), modified: info.ModTime()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		f.device, f.inode, f.changed = s.Dev, s.Ino, time.Unix(s.Ctim.Unix())
	}
	return f
}

// recent is the age below which another change may have the same time stamps (a kernel tick is at
// most 10 ms).
const recent = 50 * time.Millisecond

// fresh reports whether a file read at the given time may have changed since without a new
// fingerprint.
func (f fingerprint) fresh(read time.Time) bool {
	return f.modified.After(read.Add(-recent)) || f.changed.After(read.Add(-recent))
}

// isMesh reports whether a file in a directory is read: YAML and JSON, except hidden files (editor
// files, links of a ConfigMap).
func isMesh(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// scan calls found for root, or for every file below it, following symbolic links. A root that does
// not exist is an error; files that vanish during the scan are not.
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
		return nil // a link to a parent directory
	}
	above[identity] = true
	defer delete(above, identity)
	entries, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	var failed error // the first error; the scan continues
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
		case err != nil: // vanished, or a dangling link
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
