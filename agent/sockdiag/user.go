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

// CreatorUID returns the UID of the creator of an established TCP connection's socket, identified
// by its local and peer address. It returns an error for a closed socket, for which the kernel
// reports user 0.
func CreatorUID(socket, peer netip.AddrPort) (uint32, error) {
	uid, err := user(exactRequest(TCP, socket, peer), Established)
	if err != nil {
		return 0, fmt.Errorf("find the user of socket %s: %w", socket, err)
	}
	return uid, nil
}

// FindTCP returns a TCP socket in any state, identified by its local and peer address. Until the
// listener has accepted the connection, Inode is 0.
func FindTCP(socket, peer netip.AddrPort) (Socket, error) {
	found, err := one(exactRequest(TCP, socket, peer))
	if err != nil {
		return Socket{}, fmt.Errorf("find socket %s: %w", socket, err)
	}
	return found, nil
}

// ReceiverUID returns the UID of the creator of the socket that receives what new peers send to an
// address of this host: a TCP listener or an unconnected UDP socket, possibly bound to an
// unspecified address.
func ReceiverUID(protocol Protocol, address netip.AddrPort) (uid uint32, err error) {
	socket, peer, state := address, netip.AddrPortFrom(address.Addr(), 0), Listen
	// For UDP, the kernel interprets the two addresses in the opposite order.
	if protocol == UDP {
		socket, peer, state = peer, socket, Unconnected
	}
	uid, err = user(exactRequest(protocol, socket, peer), state)
	if err != nil {
		return 0, fmt.Errorf("find the socket that receives at %s: %w", address, err)
	}
	return uid, nil
}

// exactRequest returns a request for the socket with a local and peer address.
func exactRequest(protocol Protocol, socket, peer netip.AddrPort) []byte {
	family := uint8(unix.AF_INET)
	if socket.Addr().Unmap().Is6() {
		family = unix.AF_INET6
	}
	message := request(family, protocol, 1<<Established) // the kernel ignores the state
	id := message[len(message)-sockidLength:]
	binary.BigEndian.PutUint16(id[sockidPort:], socket.Port())
	binary.BigEndian.PutUint16(id[sockidPeerPort:], peer.Port())
	copy(id[sockidSource:], socket.Addr().Unmap().AsSlice())
	copy(id[sockidDestination:], peer.Addr().Unmap().AsSlice())
	binary.NativeEndian.PutUint64(id[sockidCookie:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	return message
}

// user returns the UID of the socket that a request identifies. It returns errNoUser if the socket
// is in another state or has no process.
func user(request []byte, state State) (uint32, error) {
	found, err := one(request)
	if err != nil {
		return 0, err
	}
	if found.State != state || found.Inode == 0 {
		return 0, errNoUser
	}
	return found.UID, nil
}

// one returns the socket that a request identifies.
func one(request []byte) (found Socket, err error) {
	err = list(0, request, func(s Socket) { found = s })
	return found, err
}
