// Package unixpeer identifies the process at the other end of a Unix socket.
package unixpeer

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is the process that made a connection, with the user that it had then.
type Peer struct{ UID, PID int }

// Of returns the peer of a connection (SO_PEERCRED).
func Of(socket *net.UnixConn) (Peer, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return Peer{-1, 0}, err
	}
	var credentials *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		credentials, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return Peer{-1, 0}, fmt.Errorf("ask who is connecting: %w", err)
	}
	return Peer{int(credentials.Uid), int(credentials.Pid)}, nil
}
