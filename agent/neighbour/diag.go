package neighbour

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

// The kernel's answer to "who listens?" over netlink (sock_diag(7)), which costs as much as there are listeners. The tables in /proc
// cost as much as there are connections, and a walk over a hash table that is made for a million of them.
const (
	tcpListen = 10 // TCP_LISTEN, include/net/tcp_states.h

	// Offsets in struct inet_diag_sockid, which is 48 bytes long: ports and addresses are in the order of the network.
	sockidLength = 48
	sockidPort   = 0
	sockidSource = 4

	// struct inet_diag_req_v2: family, protocol, extensions, pad, states, sockid.
	diagRequestLength = 8 + sockidLength

	// struct inet_diag_msg: family, state, timer, retransmissions, sockid, expires, queues, uid, inode.
	diagMessageLength = 4 + sockidLength + 20
	diagMessageSockid = 4
	diagMessageUID    = 4 + sockidLength + 12

	diagBuffer = 32 << 10 // what the kernel fills at most in one go
)

// diagnose asks the kernel for the listening TCP sockets of a family (AF_INET, AF_INET6) of this network namespace.
func diagnose(family uint8) ([]Socket, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Sendto(socket, diagRequest(family), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	var sockets []Socket
	buffer := make([]byte, diagBuffer)
	for {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		found, done, err := diagAnswer(buffer[:n])
		sockets = append(sockets, found...)
		if err != nil || done {
			return sockets, err
		}
	}
}

func diagRequest(family uint8) []byte {
	const length = unix.SizeofNlMsghdr + diagRequestLength
	request := make([]byte, length)
	binary.NativeEndian.PutUint32(request[0:], length)
	binary.NativeEndian.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 1<<tcpListen)
	return request
}

// diagAnswer reads one datagram of an answer; done says that it was the last. Messages that are none are passed over.
func diagAnswer(datagram []byte) (sockets []Socket, done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return nil, false, fmt.Errorf("netlink: %w", err)
	}
	for _, message := range messages {
		switch message.Header.Type {
		case unix.NLMSG_DONE: // how the listing ended: a kernel that has no tcp_diag says so here
			return sockets, true, diagError(message.Data, nil)
		case unix.NLMSG_ERROR:
			return sockets, true, diagError(message.Data, errors.New("netlink: an error without a number"))
		case unix.SOCK_DIAG_BY_FAMILY:
			if socket, ok := diagSocket(message.Data); ok {
				sockets = append(sockets, socket)
			}
		}
	}
	return sockets, false, nil
}

// diagError is the error that a message begins with, as a negative number; otherwise where there is none.
func diagError(body []byte, otherwise error) error {
	if len(body) < 4 {
		return otherwise
	}
	if number := int32(binary.NativeEndian.Uint32(body)); number < 0 {
		return os.NewSyscallError("netlink", syscall.Errno(-number))
	}
	return otherwise
}

func diagSocket(body []byte) (Socket, bool) {
	if len(body) < diagMessageLength {
		return Socket{}, false
	}
	id := body[diagMessageSockid:]
	length := net.IPv4len
	if body[0] == unix.AF_INET6 {
		length = net.IPv6len
	}
	address, ok := netip.AddrFromSlice(id[sockidSource : sockidSource+length])
	port := binary.BigEndian.Uint16(id[sockidPort:])
	return Socket{netip.AddrPortFrom(address.Unmap(), port), int(binary.NativeEndian.Uint32(body[diagMessageUID:]))}, ok
}
