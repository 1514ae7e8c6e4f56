package xds

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/unixpeer"
)

// ListenOptions configures a Unix socket.
type ListenOptions struct {
	Path  string      // path of the Unix socket
	Mode  fs.FileMode // permissions of the socket; 0: 0660
	Group int         // group of the socket; 0 or less: the group of the process
	// ExtraGroup is another group that may connect if Mode is 0660; 0: none.
	ExtraGroup int
	// Users are the user IDs that may connect, according to the credentials of the peer; empty: any
	// user may.
	Users  []uint32
	Logger *slog.Logger // receives warnings about clients and the socket; nil: none
}

// maxSocketPath is the maximum length of a Unix socket's path in bytes: the size of sun_path in
// unix(7), without the final zero byte.
const maxSocketPath = 107

// Listen creates a Unix socket with its final mode and group. It replaces the socket of a process
// that has exited, but returns an error if a process still serves the socket. Closing the listener
// removes the socket, unless another one has replaced it.
func Listen(options ListenOptions) (net.Listener, error) {
	path := options.Path
	if options.Mode == 0 {
		options.Mode = 0o660
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	building := filepath.Join(filepath.Dir(path),
		"."+strconv.Itoa(os.Getpid())+"."+filepath.Base(path))
	if len(building) > maxSocketPath {
		return nil,
			fmt.Errorf("listen on %s: the path is too long for a Unix socket: shorten it by %d "+
				"bytes", path, len(building)-maxSocketPath)
	}
	if err := replaceable(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The umask determines the permissions of a new socket. So it is created under a temporary
	// name, and renamed once its mode and group are set.
	if err := os.Remove(building); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	unixListener, err := net.ListenUnix("unix", &net.UnixAddr{Name: building, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	unixListener.SetUnlinkOnClose(false)
	info, err := prepare(building, path, options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), unixListener.Close(),
			ignoreMissing(os.Remove(building)))
	}
	return &listener{UnixListener: unixListener, path: path, created: info, users: options.Users,
		logger: options.Logger}, nil
}

func prepare(building, path string, options ListenOptions) (fs.FileInfo, error) {
	if options.Group > 0 {
		if err := chgrp(building, options.Group); err != nil {
			return nil, fmt.Errorf("change the group of the socket to %d: %w", options.Group, err)
		}
	}
	if err := os.Chmod(building, options.Mode); err != nil {
		return nil, err
	}
	if options.ExtraGroup > 0 {
		if err := letGroup(building, options.ExtraGroup); err != nil {
			options.Logger.Warn("cannot set an ACL on the xDS socket, changing its group instead",
				"socket", path, "group", options.ExtraGroup, "error", err)
			if err := chgrp(building, options.ExtraGroup); err != nil {
				return nil, fmt.Errorf("change the group of the socket to %d: %w",
					options.ExtraGroup, err)
			}
		}
	}
	info, err := os.Lstat(building)
	if err != nil {
		return nil, err
	}
	return info, os.Rename(building, path)
}

// chgrp changes the group of a file with the only system call for this purpose that the unit
// outrider.service permits.
func chgrp(path string, group int) error {
	return unix.Fchownat(unix.AT_FDCWD, path, -1, group, unix.AT_SYMLINK_NOFOLLOW)
}

// replaceable returns an error if the file at a path must not be replaced, because it is not a
// socket, or because a process serves the socket.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the path exists but is not a socket: remove it")
	}
	connection, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = connection.Close()
		return errors.New("another process serves this socket: stop that process")
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("check whether another process serves this socket: %w", err)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// listener accepts connections of permitted users, and records the credentials of each peer.
type listener struct {
	*net.UnixListener
	path    string
	created fs.FileInfo
	users   []uint32
	logger  *slog.Logger
	once    sync.Once
	err     error // result of the first Close
}

// Accept implements net.Listener. It closes connections of users who are not permitted.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		who, err := unixpeer.OfConn(accepted)
		switch {
		case err != nil:
			l.logger.Warn("cannot read peer credentials, closing xDS connection", "socket", l.path,
				"error", err)
		case len(l.users) > 0 && !slices.Contains(l.users, who.UID):
			l.logger.Warn("xDS connection rejected: user not permitted", "socket", l.path, "uid",
				who.UID, "pid", who.PID)
		default:
			return connection{accepted,
				Peer{Address: l.path, PID: int32(who.PID), UID: who.UID, GID: who.GID}}, nil
		}
		_ = accepted.Close()
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.err = l.UnixListener.Close()
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.created) {
			l.err = errors.Join(l.err, ignoreMissing(os.Remove(l.path)))
		}
	})
	return l.err
}
