package keeper

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peer is who opened a connection.
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

// hungUp tells whether the other side of a connection is gone, whatever is still unread.
func hungUp(socket *net.UnixConn) bool {
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	gone := true // Control fails when it is closed
	_ = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0 && poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone
}
