// Package unixpeer identifies the process at the other end of a Unix socket.
package unixpeer

import (
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer identifies the process at the other end of a connection, as the kernel recorded it when the
// connection was made. It does not change if the process exits, executes another program or changes
// its user, or if its PID is reused.
type Peer struct {
	PID    int
	UID    uint32
	GID    uint32   // primary group
	Groups []uint32 // supplementary groups
}

// maximumGroups is Linux's limit of supplementary groups (NGROUPS_MAX in limits.h).
const maximumGroups = 65536

// OfConn returns the peer of a connection (SO_PEERCRED, SO_PEERGROUPS). If err is not nil, the peer
// must not be used: its UID would be 0, that of root.
func OfConn(socket *net.UnixConn) (Peer, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("cannot identify the peer: %w", err)
	}
	var peer Peer
	var failure error
	err = raw.Control(func(fd uintptr) { peer, failure = peerOf(int(fd)) })
	if err = errors.Join(err, failure); err != nil {
		return Peer{}, fmt.Errorf("cannot identify the peer: %w", err)
	}
	return peer, nil
}

func peerOf(fd int) (Peer, error) {
	credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, fmt.Errorf("get SO_PEERCRED: %w", err)
	}
	groups, err := groupsOf(fd)
	if err != nil {
		return Peer{}, fmt.Errorf("get SO_PEERGROUPS: %w", err)
	}
	return Peer{int(credentials.Pid), credentials.Uid, credentials.Gid, groups}, nil
}

// groupsOf reads SO_PEERGROUPS, for which x/sys/unix has a constant but no function.
func groupsOf(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		// a socklen_t, in which the kernel returns the size of all groups in bytes
		length := uint32(len(groups)) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET,
			unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&length)), 0)
		switch {
		case errno == 0:
			return groups[:length/4], nil
		case errno == unix.ERANGE && int(length/4) > len(groups) && length/4 <= maximumGroups:
			groups = make([]uint32, length/4)
		default:
			return nil, errno
		}
	}
}
