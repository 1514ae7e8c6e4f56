package api

import (
	"errors"
	"fmt"
	"net"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer identifies the other end of a connection. The kernel records it when the connection is made,
// so neither a later exit, setuid or exec of the peer nor a reused PID changes it.
type Peer struct {
	PID    int
	UID    uint32
	GID    uint32   // primary group
	Groups []uint32 // supplementary groups
}

// maximumGroups is NGROUPS_MAX of Linux (limits.h).
const maximumGroups = 65536

// peerOf reads the peer's credentials from the socket.
func peerOf(connection *net.UnixConn) (Peer, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("look at the peer's socket: %w", err)
	}
	var peer Peer
	var failed error
	err = raw.Control(func(fd uintptr) {
		var credentials *unix.Ucred
		if credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED); failed != nil {
			failed = fmt.Errorf("ask for SO_PEERCRED: %w", failed)
			return
		}
		peer = Peer{PID: int(credentials.Pid), UID: credentials.Uid, GID: credentials.Gid}
		peer.Groups, failed = peerGroups(int(fd))
	})
	if err = errors.Join(err, failed); err != nil {
		return Peer{}, err
	}
	return peer, nil
}

// peerGroups reads SO_PEERGROUPS, for which x/sys/unix has a constant but no function.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		length := uint32(len(groups)) * 4 // socklen_t; the kernel returns the required length
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET,
			unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&length)), 0)
		switch {
		case errno == 0:
			return groups[:length/4], nil
		case errno == unix.ERANGE && int(length/4) > len(groups) && length/4 <= maximumGroups:
			groups = make([]uint32, length/4)
		default:
			return nil, fmt.Errorf("ask for SO_PEERGROUPS: %w", errno)
		}
	}
}

// Rule determines who may change the proxy and read the configuration. Everyone may read the
// status.
type Rule struct {
	UID   uint32 // user of the agent, always privileged
	Group string // members are authorised; "" = none
	// LookupGroup returns the GID of a group; nil = os/user. It is called for every restricted
	// request, so a group created after the agent's start is found.
	LookupGroup func(name string) (uint32, error)
}

// privileged reports whether the peer is root or the agent's own user.
func (r Rule) privileged(peer Peer) bool { return peer.UID == 0 || peer.UID == r.UID }

// Restricted operations, as worded in refusals.
const (
	changes = "changes the proxy"
	shows   = "shows the configuration"
)

// refuse returns an error with status 403 if the peer may not perform the operation, else nil.
func (r Rule) refuse(peer Peer, does string) *Error {
	if r.privileged(peer) {
		return nil
	}
	if r.Group != "" {
		lookup := r.LookupGroup
		if lookup == nil {
			lookup = lookupGroup
		}
		if group, err := lookup(r.Group); err == nil &&
			(peer.GID == group || slices.Contains(peer.Groups, group)) {
			return nil
		}
	}
	who := "root and the agent's own user"
	if r.Group != "" {
		who = "root, the agent's own user and members of group " + r.Group
	}
	message := fmt.Sprintf("not authorised: this %s; %s may", does, who)
	return &Error{Status: 403, Message: message}
}

func lookupGroup(name string) (uint32, error) {
	group, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("group %s has the number %q: %w", name, group.Gid, err)
	}
	return uint32(number), nil
}
