// Package sockdiag lists sockets over netlink (sock_diag(7)). The cost of listing listeners depends
// only on their number, whereas the tables in /proc contain all connections. Listing other states
// walks the kernel's hash table but formats only matching sockets.
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

// Socket is a TCP or UDP socket, or a pending handshake of a TCP listener.
type Socket struct {
	State   State
	Waiting uint32         // length of a listener's accept queue
	Address netip.AddrPort // local; IPv4-mapped IPv6 addresses are not unmapped
	Device  uint32         // index of the bound network interface; 0: none
	UID     uint32         // of its creator
	Inode   uint32         // 0: owned by no process, such as a handshake
	// CGroup is the creator's control group: the inode of its directory in /sys/fs/cgroup;
	// 0: unknown.
	CGroup uint64
	// IPv6Only: an IPv6 listener that does not accept IPv4.
	IPv6Only bool
}

// Protocol is a transport protocol.
type Protocol uint8

// The protocols.
const (
	TCP Protocol = unix.IPPROTO_TCP
	UDP Protocol = unix.IPPROTO_UDP
)

// State is the state of a socket, TCP_* in include/net/tcp_states.h.
type State uint8

// States for Each.
const (
	Established State = 1
	SynReceived State = 3 // pending handshake, with the address of its listener
	FinWait1    State = 4 // the local side has closed for writing but may still receive
	FinWait2    State = 5
	Unconnected State = 7 // unconnected UDP socket
	CloseWait   State = 8 // the peer has closed for writing but may still receive
	Listen      State = 10
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

	// struct inet_diag_req_v2: family, protocol, extensions, pad, states, sockid.
	requestLength = 8 + sockidLength

	// struct inet_diag_msg: family, state, timer, retransmissions, sockid, expires, two queues,
	// uid, inode.
	messageLength  = 4 + sockidLength + 20
	messageState   = 1
	messageSockid  = 4
	messageWaiting = 4 + sockidLength + 4 // first queue: accept queue of a listener
	messageUID     = 4 + sockidLength + 12
	messageInode   = messageUID + 4

	bufferLength = 32 << 10 // maximum size of one dump datagram
)

// Listening returns the listening TCP sockets of this network namespace. Sockets with the same
// address are in the kernel's order: newest first for IPv4, newest last for IPv6 (__inet_hash in
// net/ipv4/inet_hashtables.c).
func Listening() ([]Socket, error) {
	var all []Socket
	err := Each(TCP, func(s Socket) { all = append(all, s) }, Listen)
	return all, err
}

// ListeningAddresses returns the addresses of Listening; nil if they cannot be listed.
func ListeningAddresses() []netip.AddrPort {
	var all []netip.AddrPort
	_ = Each(TCP, func(s Socket) {
		all = append(all, netip.AddrPortFrom(s.Address.Addr().Unmap(), s.Address.Port()))
	}, Listen)
	return all
}

// Each calls visit for each socket of a protocol in one of the states, in this network namespace. A
// socket may appear twice if the kernel's table changes meanwhile.
func Each(protocol Protocol, visit func(Socket), states ...State) error {
	mask := uint32(0)
	for _, state := range states {
		mask |= 1 << state
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		asked := request(family, protocol, mask, unix.NLM_F_DUMP)
		err := exchange(asked, make([]byte, bufferLength), func(datagram []byte) (bool, error) {
			found, done, err := answer(datagram)
			for _, s := range found {
				visit(s)
			}
			return done, err
		})
		if err != nil {
			return fmt.Errorf("list sockets: %w", err)
		}
	}
	return nil
}

// exchange sends a request and passes each datagram of the reply to read until read reports the
// last.
func exchange(
	request, buffer []byte, read func(datagram []byte) (done bool, err error),
) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
		unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Sendto(socket, request, 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
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

func request(family uint8, protocol Protocol, states uint32, flags uint16) []byte {
	const length = unix.SizeofNlMsghdr + requestLength
	message := make([]byte, length)
	binary.NativeEndian.PutUint32(message[0:], length)
	binary.NativeEndian.PutUint16(message[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_REQUEST|flags)
	body := message[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, uint8(protocol)
	binary.NativeEndian.PutUint32(body[4:], states)
	return message
}

// answer parses one datagram of a reply and skips messages of other types. done reports whether it
// was the last datagram.
func answer(datagram []byte) (sockets []Socket, done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return nil, false, fmt.Errorf("netlink: %w", err)
	}
	for _, message := range messages {
		switch message.Header.Type {
		case unix.NLMSG_DONE: // contains the error if the kernel lacks tcp_diag
			return sockets, true, errorOf(message.Data, nil)
		case unix.NLMSG_ERROR:
			return sockets, true,
				errorOf(message.Data, errors.New("netlink: an error without a number"))
		case unix.SOCK_DIAG_BY_FAMILY:
			if socket, ok := socketOf(message.Data); ok {
				sockets = append(sockets, socket)
			}
		}
	}
	return sockets, false, nil
}

// errorOf returns the negative errno at the beginning of a message as an error, or otherwise if
// there is none.
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
		State:   State(body[messageState]),
		Waiting: binary.NativeEndian.Uint32(body[messageWaiting:]),
		Address: netip.AddrPortFrom(address, binary.BigEndian.Uint16(id[sockidPort:])),
		Device:  binary.NativeEndian.Uint32(id[sockidDevice:]),
		UID:     binary.NativeEndian.Uint32(body[messageUID:]),
		Inode:   binary.NativeEndian.Uint32(body[messageInode:]),
		CGroup:  cgroupOf(body[messageLength:]),

		IPv6Only: ipv6Only(body[messageLength:]),
	}, ok
}
