package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// errNoUser reports that a socket is closed or belongs to another network namespace.
var errNoUser = errors.New("no process has the socket")

// User returns the UID of the creator of an established TCP connection's socket, identified by its
// local and peer address. A closed socket is an error, although the kernel reports user 0 for it.
func User(socket, peer netip.AddrPort) (uint32, error) {
	var uid uint32
	err := exchange(exactRequest(socket, peer), make([]byte, 4<<10),
		func(datagram []byte) (done bool, err error) {
			uid, err = userIn(datagram)
			return true, err
		})
	if err != nil {
		return 0, fmt.Errorf("look for the user of %s: %w", socket, err)
	}
	return uid, nil
}

// exactRequest returns a request for one socket.
func exactRequest(socket, peer netip.AddrPort) []byte {
	family := uint8(unix.AF_INET)
	if socket.Addr().Unmap().Is6() {
		family = unix.AF_INET6
	}
	message := request(family, TCP, 1<<Established, 0)
	id := message[unix.SizeofNlMsghdr+8:]
	binary.BigEndian.PutUint16(id[sockidPort:], socket.Port())
	binary.BigEndian.PutUint16(id[sockidPeerPort:], peer.Port())
	copy(id[sockidSource:], socket.Addr().Unmap().AsSlice())
	copy(id[sockidDestination:], peer.Addr().Unmap().AsSlice())
	binary.NativeEndian.PutUint64(id[sockidCookie:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	return message
}

func userIn(datagram []byte) (uint32, error) {
	sockets, _, err := answer(datagram)
	if err != nil {
		return 0, err
	}
	if len(sockets) != 1 || sockets[0].State != Established || sockets[0].Inode == 0 {
		return 0, errNoUser
	}
	return sockets[0].UID, nil
}
