// Package sockdiag lists sockets over netlink (sock_diag(7)). The cost of listing listeners depends
// only on their number, whereas the files in /proc/net also contain all connections. Listing
// sockets in other states walks the kernel's hash table, but only matching sockets are copied.
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Socket is a TCP or UDP socket, or a pending handshake of a TCP listener.
type Socket struct {
	State State
	// Cookie identifies the socket until the next boot.
	Cookie uint64
	// length of a listener's accept queue; for other sockets, the unread bytes
	ReceiveQueue uint32
	Address      netip.AddrPort // local; IPv4-mapped IPv6 addresses are not unmapped
	Peer         netip.AddrPort // peer of a connection
	Device       uint32         // index of the bound network interface; 0: none
	UID          uint32         // user that created the socket
	Inode        uint32         // 0: of no process, such as a connection not yet accepted
	// CGroup is the creator's control group: the inode of its directory in /sys/fs/cgroup;
	// 0: unknown.
	CGroup uint64
	// IPv6Only reports whether an IPv6 listener does not accept IPv4.
	IPv6Only bool
}

// Protocol is a transport protocol.
type Protocol uint8

// The protocols.
const (
	TCP Protocol = unix.IPPROTO_TCP
	UDP Protocol = unix.IPPROTO_UDP
)

// State is the state of a socket: TCP_* in the kernel's include/net/tcp_states.h.
type State uint8

// States that callers pass to EachSocket.
const (
	Established State = 1
	SynReceived State = 3 // pending handshake, with the address of its listener
	FinWait1    State = 4 // the local side has closed for writing but may still receive
	FinWait2    State = 5
	Unconnected State = 7 // unconnected UDP socket
	CloseWait   State = 8 // the peer has closed for writing but may still receive
	Listen      State = 10
)

// Sizes of the buffer for a datagram of the kernel, in bytes.
const (
	maxDump   = 32 << 10
	maxSocket = 4 << 10 // one socket or error
)

const (
	// Offsets in struct inet_diag_sockid: source port, destination port, source, destination,
	// interface, cookie. Ports and addresses are in network byte order.
	sockidLength      = 48
	sockidPort        = 0
	sockidPeerPort    = 2
	sockidSource      = 4
	sockidDestination = 20
	sockidDevice      = 36
	sockidCookie      = 40

	// Offsets in struct inet_diag_msg: family, state, timer, retransmissions, sockid, expires, two
	// queues, uid, inode.
	messageLength = 4 + sockidLength + 20
	messageState  = 1
	messageSockid = 4
	// idiag_rqueue: length of a listener's accept queue, or unread bytes
	messageWaiting = 4 + sockidLength + 4
	messageUID     = 4 + sockidLength + 12
	messageInode   = messageUID + 4

	// Types of attributes: INET_DIAG_* in include/uapi/linux/inet_diag.h.
	attributeIPv6Only = 11
	attributeCGroup   = 21 // since Linux 5.8
)

// ListeningSockets returns the listening TCP sockets of this network namespace. Sockets with the
// same address are in the kernel's order: newest first for IPv4, newest last for IPv6 (__inet_hash
// in net/ipv4/inet_hashtables.c).
func ListeningSockets() ([]Socket, error) {
	var all []Socket
	err := EachSocket(TCP, func(s Socket) { all = append(all, s) }, Listen)
	return all, err
}

// ListeningAddresses returns the addresses of the listening TCP sockets, with IPv4-mapped addresses
// as IPv4; nil if they cannot be listed.
func ListeningAddresses() []netip.AddrPort {
	var all []netip.AddrPort
	_ = EachSocket(TCP, func(s Socket) {
		all = append(all, netip.AddrPortFrom(s.Address.Addr().Unmap(), s.Address.Port()))
	}, Listen)
	return all
}

// EachSocket calls visit for each socket of a protocol in one of the states, in this network
// namespace. A socket may be visited twice if the kernel's table changes during the listing.
func EachSocket(protocol Protocol, visit func(Socket), states ...State) error {
	return EachSocketOnPorts(protocol, 0, 0, visit, states...)
}

// EachSocketOnPorts is like EachSocket for the sockets whose local port is from first to last. The
// kernel filters them.
func EachSocketOnPorts(protocol Protocol, first, last uint16, visit func(Socket),
	states ...State) error {
	mask := uint32(0)
	for _, state := range states {
		mask |= 1 << state
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		body := request(family, protocol, mask)
		if last > 0 {
			body = append(body, portFilter(first, last)...)
		}
		if err := list(unix.NLM_F_DUMP, body, visit); err != nil {
			return fmt.Errorf("list sockets: %w", err)
		}
	}
	return nil
}

// portFilter returns an attribute with a filter program for the kernel, which accepts sockets whose
// local port is from first to last. An operation (struct inet_diag_bc_op) consists of a code and
// the offsets of the next operation if its comparison is true (yes) or false (no).
func portFilter(first, last uint16) []byte {
	const (
		reqBytecode = 1 // INET_DIAG_REQ_BYTECODE
		sourceGE    = 2 // INET_DIAG_BC_S_GE, with the port in the following operation
		sourceLE    = 3
		length      = 16 // length of the program: a jump to its end accepts the socket
		reject      = length + 4
	)
	number := binary.NativeEndian.AppendUint16
	attribute := number(number(nil, 4+length), reqBytecode)
	for at, op := range []struct {
		code byte
		port uint16
	}{{sourceGE, first}, {sourceLE, last}} {
		const each = 8
		attribute = append(attribute, op.code, each)
		attribute = number(attribute, uint16(reject-each*at))
		attribute = number(append(attribute, 0, 0), op.port)
	}
	return attribute
}

// request returns a struct inet_diag_req_v2: family, protocol, extensions, padding, states, sockid.
func request(family uint8, protocol Protocol, states uint32) []byte {
	body := append([]byte{family, uint8(protocol), 0, 0},
		binary.NativeEndian.AppendUint32(nil, states)...)
	return append(body, make([]byte, sockidLength)...)
}

// list sends a request and calls visit for each socket in the replies, as they arrive.
func list(flags uint16, request []byte, visit func(Socket)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
		unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	message := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(request)))
	message = binary.NativeEndian.AppendUint16(message, unix.SOCK_DIAG_BY_FAMILY)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST|flags)
	// sequence number and port ID are 0
	message = append(append(message, make([]byte, 8)...), request...)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{
		Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	size := maxDump
	if flags&unix.NLM_F_DUMP == 0 {
		size = maxSocket
	}
	buffer := make([]byte, size)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		replies, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return err
		}
		for _, reply := range replies {
			if kind := reply.Header.Type; kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR {
				if number := -int32(binary.NativeEndian.Uint32(reply.Data)); number != 0 {
					return unix.Errno(number)
				}
				return nil
			}
			socket, err := socketOf(reply.Data)
			if err != nil {
				return err
			}
			visit(socket)
			if flags&unix.NLM_F_DUMP == 0 {
				return nil
			}
		}
	}
}

func socketOf(body []byte) (Socket, error) {
	if len(body) < messageLength {
		return Socket{}, fmt.Errorf("a netlink message of %d bytes is too short for a socket",
			len(body))
	}
	id := body[messageSockid:]
	length := net.IPv4len
	if body[0] == unix.AF_INET6 {
		length = net.IPv6len
	}
	address, _ := netip.AddrFromSlice(id[sockidSource : sockidSource+length])
	peer, _ := netip.AddrFromSlice(id[sockidDestination : sockidDestination+length])
	s := Socket{
		State:        State(body[messageState]),
		Cookie:       binary.NativeEndian.Uint64(id[sockidCookie:]),
		ReceiveQueue: binary.NativeEndian.Uint32(body[messageWaiting:]),
		Address:      netip.AddrPortFrom(address, binary.BigEndian.Uint16(id[sockidPort:])),
		Peer:         netip.AddrPortFrom(peer, binary.BigEndian.Uint16(id[sockidPeerPort:])),
		Device:       binary.NativeEndian.Uint32(id[sockidDevice:]),
		UID:          binary.NativeEndian.Uint32(body[messageUID:]),
		Inode:        binary.NativeEndian.Uint32(body[messageInode:]),
	}
	attributes, err := netlink.NewAttributeDecoder(body[messageLength:])
	if err != nil {
		return Socket{}, err
	}
	for attributes.Next() {
		switch attributes.Type() {
		case attributeIPv6Only:
			s.IPv6Only = attributes.Uint8() != 0
		case attributeCGroup:
			s.CGroup = attributes.Uint64()
		}
	}
	return s, attributes.Err()
}
