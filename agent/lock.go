package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockName is the lock file in the runtime directory. The kernel releases the lock when the process
// ends.
const lockName = "outriderd.lock"

// lock acquires the exclusive lock of a runtime directory. It returns an ExitError with
// ExitAlreadyRuns if another agent holds it.
func lock(runtimeDir string) (*os.File, error) {
	path := filepath.Join(runtimeDir, lockName)
	var file *os.File
	for file == nil {
		opened, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
		if err != nil {
			return nil, fmt.Errorf("open the lock file of this configuration: %w", err)
		}
		if err := unix.Flock(int(opened.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			err = notLocked(opened, path, err)
			_ = opened.Close()
			return nil, err
		}
		if sameFile(opened, path) {
			file = opened
		} else {
			_ = opened.Close() // another agent, which is ending, has just removed the file
		}
	}
	// The PID in the file is informational. If /run is full, the lock still holds.
	if err := file.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(file, "%d\n", os.Getpid())
	}
	return file, nil
}

// notLocked returns the error of a failed lock, with the PID of its holder if that is known.
func notLocked(file *os.File, path string, err error) error {
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	holder := make([]byte, 32)
	n, _ := file.ReadAt(holder, 0)
	if n == 0 {
		n = copy(holder, "unknown")
	}
	return exitf(ExitAlreadyRuns,
		"another outriderd (pid %s) runs on this configuration: it holds %s; stop it first, or give "+
			"this one an instance or a runtime_dir of its own",
		strings.TrimSpace(string(holder[:n])), path)
}

// sameFile reports whether an open file is still the one at path.
func sameFile(file *os.File, path string) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}
