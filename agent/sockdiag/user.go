package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// errNoUser is the error of sockets that are closed or not of this network namespace.
var errNoUser = errors.New("no process has the socket")

// User returns the user who made the socket of an established TCP connection, given by that
// socket's own address and its peer's. Of a socket that was closed meanwhile the kernel says user
// 0; that is an error here.
func User(socket, peer netip.AddrPort) (uint32, error) {
	var uid uint32
	err := exchange(exactRequest(socket, peer), make([]byte, 4<<10), func(datagram []byte) (done bool, err error) {
		uid, err = userIn(datagram)
		return true, err
	})
	if err != nil {
		return 0, fmt.Errorf("look for the user of %s: %w", socket, err)
	}
	return uid, nil
}

// exactRequest asks for one socket.
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
