package keeper

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peer is the process at the other end of a connection.
type peer struct{ uid, pid int }

func peerOf(socket *net.UnixConn) (peer, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return peer{-1, 0}, err
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
		return peer{-1, 0}, fmt.Errorf("ask who is connecting: %w", err)
	}
	return peer{int(credentials.Uid), int(credentials.Pid)}, nil
}
