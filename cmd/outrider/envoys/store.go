package envoys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"outrider.org/outrider/agent/envoy"
)

// Store is the folder with the installed Envoys, by default /usr/lib/outrider.
type Store struct {
	Folder string
	Link   string // symbolic link to the selected Envoy, by default /usr/lib/outrider/envoy
}

// ErrBusy reports that another process holds the lock of the store.
var ErrBusy = errors.New("another \"outrider envoy\" is running; try again when it is done")

// workPrefix is the prefix of the names of temporary folders in the store.
const workPrefix = ".install-"

// Path returns the path of the Envoy of a version, whether installed or not.
func (s Store) Path(version string) string {
	return envoy.InstalledPath(s.Folder, version)
}

// Installed returns the installed versions, newest first.
func (s Store) Installed() ([]string, error) {
	return envoy.InstalledVersions(s.Folder)
}

// Selected returns the version that the link points to, "" if there is none.
func (s Store) Selected() (string, error) {
	target, err := os.Readlink(s.Link)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the selected Envoy: %w", err)
	}
	return strings.TrimPrefix(filepath.Base(filepath.Dir(target)), "envoy-"), nil
}

// Select points the link to an installed version; "" removes it.
func (s Store) Select(version string) error {
	if version == "" {
		if err := os.Remove(s.Link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove the link to the selected Envoy: %w", err)
		}
		return nil
	}
	path := s.Path(version)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("envoy %[1]s is not installed; run \"outrider envoy install %[1]s\"",
			version)
	}
	target, err := filepath.Rel(filepath.Dir(s.Link), path)
	if err != nil {
		return err
	}
	next := s.Link + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("select Envoy %s: %w", version, err)
	}
	if err := os.Symlink(target, next); err != nil {
		return fmt.Errorf("select Envoy %s: %w", version, err)
	}
	return os.Rename(next, s.Link)
}

// Lock creates the folder if necessary and locks it until unlock is called. It returns ErrBusy if
// it is already locked.
func (s Store) Lock() (unlock func(), err error) {
	if err := os.MkdirAll(s.Folder, 0o755); err != nil {
		return nil, err
	}
	folder, err := os.Open(s.Folder)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = folder.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("lock %s: %w", s.Folder, err)
	}
	return func() { _ = folder.Close() }, nil
}

// workFolder creates a temporary folder, and removes the temporary folders of installations that
// were killed. The caller must hold the lock and remove the folder.
func (s Store) workFolder() (string, error) {
	left, err := filepath.Glob(filepath.Join(s.Folder, workPrefix+"*"))
	if err != nil {
		return "", err
	}
	for _, folder := range left {
		if err := os.RemoveAll(folder); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(s.Folder, workPrefix)
}
