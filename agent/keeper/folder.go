package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const lockName = "lock"

var errLocked = errors.New("another keeper uses the folder")

// makeFolder creates the keeper's folder. Its user must be able to traverse the parent folders.
func makeFolder(folder string) error {
	err := os.MkdirAll(filepath.Dir(folder), 0o755)
	if err == nil {
		err = os.MkdirAll(folder, 0o750)
	}
	if err != nil {
		return fmt.Errorf("make the keeper's folder: %w", err)
	}
	return nil
}

// lockFolder creates the keeper's folder and locks it. The lock belongs to the open file, so it
// survives a re-execution.
func lockFolder(folder string) (*os.File, error) {
	if err := makeFolder(folder); err != nil {
		return nil, err
	}
	path := filepath.Join(folder, lockName)
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock the keeper's folder: %w", err)
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errLocked
		}
		if err != nil {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", folder, err)
		}
		// A keeper that exits removes its lock file: check that the locked file still exists at
		// path.
		opened, err := file.Stat()
		if err == nil {
			var named os.FileInfo
			if named, err = os.Stat(path); err == nil && os.SameFile(opened, named) {
				return file, nil
			}
		}
		_ = file.Close()
	}
}

// listenPrivately creates a listening socket, whose mode is 0600 from the beginning, and replaces a
// stale one. It fails if another process listens at the path. Because of the folder's lock, that
// process is no keeper.
func listenPrivately(path string) (*net.UnixListener, error) {
	if probe, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = probe.Close()
		return nil, fmt.Errorf("listen on %s: another process listens there", path)
	}
	temporary := path + "~"
	if len(temporary) > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: the path is too long for a Unix socket by %d bytes",
			path, len(temporary)-maxSocketPath)
	}
	_ = os.Remove(temporary)
	// The file inherits the mode that the socket has before bind. chmod by path would follow a link
	// that the owner of the folder may put there.
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		var failure error
		err := socket.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failure)
	}}
	made, err := config.Listen(context.Background(), "unix", temporary)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	listener := made.(*net.UnixListener)
	listener.SetUnlinkOnClose(false)
	if err := os.Rename(temporary, path); err != nil {
		_ = listener.Close()
		_ = os.Remove(temporary)
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return listener, nil
}

// listenerOf returns the listener of an inherited socket.
func listenerOf(file *os.File) (*net.UnixListener, error) {
	defer func() { _ = file.Close() }()
	inherited, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("use the inherited listening socket: %w", err)
	}
	listener, ok := inherited.(*net.UnixListener)
	if !ok {
		_ = inherited.Close()
		return nil, fmt.Errorf("use the inherited listening socket: %s is not a Unix socket",
			inherited.Addr())
	}
	listener.SetUnlinkOnClose(false)
	return listener, nil
}
