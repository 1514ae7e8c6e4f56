package capture

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ownerSocket is a netlink socket that owns the tables created through it. The kernel removes the
// tables when the last descriptor of the socket is closed.
type ownerSocket struct {
	file *os.File
	// owned adds the owner flag to new tables, because google/nftables v0.3.0 clears it.
	owned bool
	// failure is the kernel's error for the last batch.
	failure error
}

const socketBuffer = 8 << 20 // an nftables transaction must fit into one datagram

// newOwnerSocket opens an ownerSocket. It requires CAP_NET_ADMIN.
func newOwnerSocket() (*ownerSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
		unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &ownerSocket{file: os.NewFile(uintptr(fd), "netlink"), owned: true}
	for _, option := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, socketBuffer); err != nil {
			_ = s.Close()
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	// A kernel that does not answer must not block outrider-capture.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&unix.Timeval{Sec: 5}); err != nil {
		_ = s.Close()
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return s, nil
}

// Close closes this descriptor of the socket. If it is the last one, the kernel removes the
// socket's tables.
func (s *ownerSocket) Close() error { return s.file.Close() }

// conn returns a connection whose messages pass through the socket.
func (s *ownerSocket) conn() (*nftables.Conn, error) {
	return nftables.New(nftables.WithTestDial(s.exchange), nftables.AsLasting())
}

// flush sends the batch of a connection. Unlike Conn.Flush it returns only the first error.
func (s *ownerSocket) flush(conn *nftables.Conn) error {
	s.failure = nil
	return cmp.Or(conn.Flush(), s.failure)
}

// exchange sends a batch or a dump request and returns all replies. io.EOF means that there was no
// reply.
func (s *ownerSocket) exchange(messages []netlink.Message) ([]netlink.Message, error) {
	return s.exchangeSome(messages, nil)
}

// exchangeSome is like exchange but returns only those messages of a dump for which keep is true.
func (s *ownerSocket) exchangeSome(messages []netlink.Message, keep func(data []byte) bool,
) ([]netlink.Message, error) {
	if len(messages) == 0 {
		return nil, io.EOF
	}
	var batch []byte
	replies, dump := 0, false
	for i, m := range messages {
		m.Header.PID = 0
		m.Header.Length = uint32(unix.SizeofNlMsghdr + len(m.Data))
		if s.owned && m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE {
			if err := setOwner(m.Data); err != nil {
				return nil, err
			}
		}
		if m.Header.Flags&netlink.Acknowledge != 0 {
			replies++
		}
		dump = dump || m.Header.Flags&netlink.Dump == netlink.Dump
		body, err := (&m).MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("encode netlink message %d: %w", i, err)
		}
		batch = append(batch, body...)
	}
	fd := int(s.file.Fd())
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{
		Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	received, err := receive(fd, replies, dump, messages[0].Header, keep)
	if err != nil && !dump {
		s.failure = err
		return nil, io.EOF
	}
	return received, err
}

// receive reads acknowledgements, or a dump to its end. It stops at the first error of the kernel,
// which then has applied nothing of the batch.
func receive(fd, count int, dump bool, first netlink.Header, keep func([]byte) bool,
) ([]netlink.Message, error) {
	var replies []netlink.Message
	size := 256 << 10 // a refusal contains the refused message
	if dump {
		size = 32 << 10 // the kernel sends at most that many bytes at once
	}
	buffer := make([]byte, size)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		parsed, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return nil, fmt.Errorf("netlink: %w", err)
		}
		for _, p := range parsed {
			if p.Header.Type > unix.NLMSG_DONE && keep != nil && !keep(p.Data) {
				continue
			}
			m := netlink.Message{Header: netlink.Header{Length: p.Header.Len,
				Type: netlink.HeaderType(p.Header.Type), Flags: netlink.HeaderFlags(p.Header.Flags),
				Sequence: p.Header.Seq, PID: first.PID}, Data: append([]byte{}, p.Data...)}
			if m.Header.Type == netlink.Error {
				if number := -int32(binary.NativeEndian.Uint32(m.Data)); number != 0 {
					drain(fd)
					return nil, unix.Errno(number)
				}
				count--
			}
			replies = append(replies, m)
			if dump && m.Header.Type == netlink.Done || !dump && count == 0 {
				return replies, nil
			}
		}
	}
}

// drain discards further errors of a batch that the kernel refused.
func drain(fd int) {
	buffer := make([]byte, 1<<16)
	for {
		if _, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT); err != nil {
			return
		}
	}
}

// setOwner sets NFT_TABLE_F_OWNER in the flags attribute of a message that creates a table.
func setOwner(data []byte) error {
	const nfgenmsg, header, owner = 4, 4, 2
	for at := nfgenmsg; at+header <= len(data); {
		length := int(binary.NativeEndian.Uint16(data[at:]))
		kind := binary.NativeEndian.Uint16(data[at+2:])
		if length < header || at+length > len(data) {
			break
		}
		if kind == unix.NFTA_TABLE_FLAGS && length == header+4 {
			binary.BigEndian.PutUint32(data[at+header:], owner)
			return nil
		}
		at += (length + 3) &^ 3
	}
	return errors.New("the netlink message that creates the nftables table has no flags")
}
