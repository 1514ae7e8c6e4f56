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

var errLocked = errors.New("another keeper lives there")

// lockFolder makes the keeper's folder and locks it: one keeper a folder. The lock belongs to the
// open file, so that it can be handed to a keeper that is being started and kept across a
// re-execution.
func lockFolder(folder string) (*os.File, error) {
	// What is above is nobody's secret: the keeper's user must get through.
	err := os.MkdirAll(filepath.Dir(folder), 0o755)
	if err == nil {
		err = os.MkdirAll(folder, 0o750)
	}
	if err != nil {
		return nil, fmt.Errorf("make the keeper's folder: %w", err)
	}
	path := filepath.Join(folder, lockName)
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock the keeper's folder: %w", err)
		}
		if err := onlyName(file); err != nil {
			_ = file.Close()
			return nil, err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: %w", folder, errLocked)
			}
			return nil, fmt.Errorf("lock %s: %w", folder, err)
		}
		// A keeper that ended has removed its lock: what was locked must still be what has the
		// name.
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

// onlyName fails unless a file is a regular one without hard links: root gives the lock to the
// keeper's user, who may have put another file in its place.
func onlyName(file *os.File) error {
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return fmt.Errorf("stat %s: %w", file.Name(), err)
	}
	if status.Mode&unix.S_IFMT != unix.S_IFREG || status.Nlink > 1 {
		return fmt.Errorf("%s is not a regular file of one name; remove it", file.Name())
	}
	return nil
}

// listenPrivately makes a listening socket at a path, mode 0600 from its first moment, in place of
// a stale one. The folder's lock tells that nobody of ours listens there; one that somebody else
// listens on is left alone.
func listenPrivately(path string) (*net.UnixListener, error) {
	if probe, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = probe.Close()
		return nil, fmt.Errorf("listen on %s: another process does", path)
	}
	temporary := path + "~"
	if len(temporary) > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: the path is too long for a Unix socket by %d bytes",
			path, len(temporary)-maxSocketPath)
	}
	_ = os.Remove(temporary)
	// The socket's mode before it is bound is that of its file: no chmod by a path that the
	// folder's owner could replace.
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

// listenerOf takes over a listening socket that was handed in.
func listenerOf(file *os.File) (*net.UnixListener, error) {
	defer func() { _ = file.Close() }()
	inherited, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("take over the listening socket: %w", err)
	}
	listener, ok := inherited.(*net.UnixListener)
	if !ok {
		_ = inherited.Close()
		return nil, fmt.Errorf("take over the listening socket: %s is not a Unix socket",
			inherited.Addr())
	}
	listener.SetUnlinkOnClose(false)
	return listener, nil
}
