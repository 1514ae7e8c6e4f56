// Package sockdiag asks the kernel over netlink who listens (sock_diag(7)), which costs as much as there are listeners. The tables in
// /proc cost as much as there are connections (two seconds at 39,000 of them on a busy machine), and a walk over a hash table that is
// made for a million of them. To learn of handshakes too costs the walk, but no connection is written down.
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is a TCP socket that listens, or a handshake that one has begun.
type Socket struct {
	Handshake bool           // of the address, for whoever listens there; it is nobody's yet and has no inode
	Waiting   uint32         // connections that wait to be accepted
	Address   netip.AddrPort // as its family has it: IPv4 within IPv6 stays so
	Device    uint32         // the index of the network interface it is bound to; 0: none
	UID       uint32         // who made it
	Inode     uint32
	CGroup    uint64 // of whoever made it: the inode of its folder in /sys/fs/cgroup; 0: not known

	established bool
}

const (
	// include/net/tcp_states.h: TCP_ESTABLISHED, TCP_SYN_RECV, TCP_LISTEN.
	tcpEstablished = 1
	tcpHandshake   = 3
	tcpListen      = 10

	// Offsets in struct inet_diag_sockid: source port, destination port, source, destination, interface, cookie. Ports and addresses are in
	// the order of the network.
	sockidLength      = 48
	sockidPort        = 0
	sockidPeerPort    = 2
	sockidSource      = 4
	sockidDestination = 20
	sockidDevice      = 36
	sockidCookie      = 40

	// struct inet_diag_req_v2: family, protocol, extensions, pad, states, sockid.
	requestLength = 8 + sockidLength

	// struct inet_diag_msg: family, state, timer, retransmissions, sockid, expires, two queues, uid, inode.
	messageLength  = 4 + sockidLength + 20
	messageState   = 1
	messageSockid  = 4
	messageWaiting = 4 + sockidLength + 4 // the first queue, that of a listening socket
	messageUID     = 4 + sockidLength + 12
	messageInode   = messageUID + 4

	bufferLength = 32 << 10 // what the kernel fills at most in one go
)

// Listening tells the listening TCP sockets of this network namespace. Those of one address are in the order of the kernel's list: the
// youngest first for IPv4, last for IPv6 (__inet_hash in net/ipv4/inet_hashtables.c).
func Listening() ([]Socket, error) { return inStates(1 << tcpListen) }

// Coming tells the same, and the handshakes that have begun.
func Coming() ([]Socket, error) { return inStates(1<<tcpListen | 1<<tcpHandshake) }

func inStates(states uint32) ([]Socket, error) {
	var all []Socket
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, err := ask(family, states)
		if err != nil {
			return nil, fmt.Errorf("look at listening sockets: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// ask is inStates for one family.
func ask(family uint8, states uint32) ([]Socket, error) {
	var sockets []Socket
	err := exchange(request(family, states, unix.NLM_F_DUMP), make([]byte, bufferLength), func(datagram []byte) (bool, error) {
		found, done, err := answer(datagram)
		sockets = append(sockets, found...)
		return done, err
	})
	return sockets, err
}

// exchange sends a request and hands over each datagram of the answer, until read reports the last one.
func exchange(request, buffer []byte, read func(datagram []byte) (done bool, err error)) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Sendto(socket, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		if done, err := read(buffer[:n]); err != nil || done {
			return err
		}
	}
}

func request(family uint8, states uint32, flags uint16) []byte {
	const length = unix.SizeofNlMsghdr + requestLength
	message := make([]byte, length)
	binary.NativeEndian.PutUint32(message[0:], length)
	binary.NativeEndian.PutUint16(message[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_REQUEST|flags)
	body := message[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], states)
	return message
}

// answer reads one datagram of an answer; done says that it was the last. Messages that are none are passed over.
func answer(datagram []byte) (sockets []Socket, done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return nil, false, fmt.Errorf("netlink: %w", err)
	}
	for _, message := range messages {
		switch message.Header.Type {
		case unix.NLMSG_DONE: // how the listing ended: a kernel that has no tcp_diag says so here
			return sockets, true, errorOf(message.Data, nil)
		case unix.NLMSG_ERROR:
			return sockets, true, errorOf(message.Data, errors.New("netlink: an error without a number"))
		case unix.SOCK_DIAG_BY_FAMILY:
			if socket, ok := socketOf(message.Data); ok {
				sockets = append(sockets, socket)
			}
		}
	}
	return sockets, false, nil
}

// errorOf is the error that a message begins with, as a negative number; otherwise where there is none.
func errorOf(body []byte, otherwise error) error {
	if len(body) < 4 {
		return otherwise
	}
	if number := int32(binary.NativeEndian.Uint32(body)); number < 0 {
		return os.NewSyscallError("netlink", syscall.Errno(-number))
	}
	return otherwise
}

func socketOf(body []byte) (Socket, bool) {
	if len(body) < messageLength {
		return Socket{}, false
	}
	id := body[messageSockid:]
	length := net.IPv4len
	if body[0] == unix.AF_INET6 {
		length = net.IPv6len
	}
	address, ok := netip.AddrFromSlice(id[sockidSource : sockidSource+length])
	return Socket{
		Handshake: body[messageState] == tcpHandshake, established: body[messageState] == tcpEstablished,
		Waiting: binary.NativeEndian.Uint32(body[messageWaiting:]),
		Address: netip.AddrPortFrom(address, binary.BigEndian.Uint16(id[sockidPort:])),
		Device:  binary.NativeEndian.Uint32(id[sockidDevice:]),
		UID:     binary.NativeEndian.Uint32(body[messageUID:]),
		Inode:   binary.NativeEndian.Uint32(body[messageInode:]),
		CGroup:  cgroupOf(body[messageLength:]),
	}, ok
}
