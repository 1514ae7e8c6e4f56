package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// From include/uapi/linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet, ctDelete   = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1, unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	ctTuple           = 1 // attribute: addresses of the first packet
	ctStatus          = 3
	ctFilter          = 25
	ctTupleIP         = 1 // attribute inside ctTuple
	ctTupleProtocol   = 2
	ctDestinationIPv4 = 2 // attribute inside ctTupleIP
	ctDestinationIPv6 = 4
	ctProtocol        = 1 // attribute inside ctTupleProtocol
	ctDestinationPort = 3
	ctFilterTuple     = 1 // attribute inside ctFilter: the fields of ctTuple that must match
	// ctFilterFlags selects protocol and destination port. forgetQueries compares the addresses
	// itself, because the kernel's filter for IPv6 addresses is inverted.
	ctFilterFlags = 1<<3 | 1<<5
)

// forgetQueries deletes the conntrack entries of UDP queries to resolvers; redirected selects
// translated or untranslated queries. As long as the entry of a socket exists, the kernel handles
// later queries of the socket like the first one, whatever the rules say.
func (s *ownerSocket) forgetQueries(resolvers []netip.Addr, redirected bool) error {
	var deletions []netlink.Message
	for _, r := range resolvers {
		family, kind := byte(unix.AF_INET), uint16(ctDestinationIPv4)
		if r.Is6() {
			family, kind = unix.AF_INET6, ctDestinationIPv6
		}
		message := func(number netlink.HeaderType, flags netlink.HeaderFlags, body ...[]byte,
		) netlink.Message {
			return netlink.Message{Header: netlink.Header{Type: number,
				Flags: netlink.Request | flags},
				Data: slices.Concat([]byte{family, 0, 0, 0}, slices.Concat(body...))}
		}
		parts := [][]byte{attribute(kind, r.AsSlice()...),
			attribute(ctProtocol, unix.IPPROTO_UDP), attribute(ctDestinationPort, 0, 53)}
		found, err := s.exchange([]netlink.Message{message(ctGet, netlink.Dump,
			nested(ctTuple, nested(ctTupleIP, parts[0]),
				nested(ctTupleProtocol, parts[1], parts[2])),
			nested(ctFilter, attribute(ctFilterTuple,
				binary.NativeEndian.AppendUint32(nil, ctFilterFlags)...)))})
		if err != nil {
			return fmt.Errorf("list conntrack entries: %w", err)
		}
		for _, f := range found {
			tuple, translated := connectionOf(f)
			other := slices.ContainsFunc(parts, func(part []byte) bool {
				// check the addresses here: kernels before 5.8 ignore the filter and list all
				// connections
				return !bytes.Contains(tuple, part)
			})
			if !other && translated == redirected {
				deletions = append(deletions, message(ctDelete, netlink.Acknowledge,
					nested(ctTuple, tuple)))
			}
		}
	}
	return s.delete(deletions)
}

// delete sends messages that delete conntrack entries. It ignores entries that no longer exist.
func (s *ownerSocket) delete(messages []netlink.Message) error {
	const atOnce = 256 // the acknowledgements must fit into the socket's receive buffer
	for some := range slices.Chunk(messages, atOnce) {
		s.failure = nil
		if _, _ = s.exchange(some); s.failure != nil && !errors.Is(s.failure, unix.ENOENT) {
			return fmt.Errorf("delete conntrack entries: %w", s.failure)
		}
	}
	return nil
}

// connectionOf returns the tuple of a connection and reports whether the kernel translated its
// destination.
func connectionOf(m netlink.Message) (tuple []byte, translated bool) {
	const header = 4
	if len(m.Data) < header { // the last message of a dump, which holds an error number only
		return nil, false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return nil, false
	}
	for attributes.Next() {
		switch attributes.Type() {
		case ctTuple:
			tuple = attributes.Bytes()
		case ctStatus:
			status := attributes.Bytes()
			translated = len(status) == 4 && binary.BigEndian.Uint32(status)&ctDNAT != 0
		}
	}
	return tuple, translated
}

func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func nested(kind uint16, parts ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, slices.Concat(parts...)...)
}
