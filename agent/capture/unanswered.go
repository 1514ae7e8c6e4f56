package capture

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
)

// From include/uapi/linux/netfilter/nfnetlink_conntrack.h, nf_conntrack_tcp.h and
// nf_conntrack_common.h.
const (
	ctProtocolInfo = 4
	ctID           = 12
	ctZone         = 18
	ctStatusMask   = 26
	ctInfoTCP      = 1 // attribute inside ctProtocolInfo
	ctTCPState     = 1 // attribute inside ctInfoTCP
	ctSYNSent      = 1 // value of ctTCPState: SYNs without an answer
	ctSNAT         = 0x10
	ctAnswered     = 0x02 // IPS_SEEN_REPLY
)

// maxForgotten bounds the connections that are deleted at once.
const maxForgotten = 1 << 14

// forgetUnanswered deletes conntrack entries of TCP connections that have no answer and are not
// translated, and returns their number. Call it after rules have come into force.
//
// The kernel decides about translation at the first SYN only. Retransmitted SYNs, and other
// connections from the same source port, would go direct until the entry expires two minutes after
// the last of them. A connection that the rules leave direct is not harmed: its next packet creates
// a new entry.
func (s *ownerSocket) forgetUnanswered() (int, error) {
	const decided = ctAnswered | ctSNAT | ctDNAT
	var deletions []netlink.Message
	collect := func(data []byte) bool {
		if id := unansweredID(data, decided); id != nil && len(deletions) < maxForgotten {
			deletions = append(deletions, netlink.Message{Data: slices.Concat(
				[]byte{data[0], 0, 0, 0}, id), Header: netlink.Header{Type: ctDelete,
				Flags: netlink.Request | netlink.Acknowledge}})
		}
		return false
	}
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	// Kernels before 5.18 ignore the filter and list all connections.
	_, err := s.exchangeSome([]netlink.Message{{Header: netlink.Header{Type: ctGet,
		Flags: netlink.Request | netlink.Dump}, Data: slices.Concat(make([]byte, 4),
		attribute(ctStatus, number(0)...), attribute(ctStatusMask, number(decided)...))}}, collect)
	if err != nil {
		return 0, fmt.Errorf("list conntrack entries: %w", err)
	}
	return len(deletions), s.delete(deletions)
}

// unansweredID returns the attributes that identify a connection if it is a TCP connection with
// only SYNs and has none of the bits of status; else nil.
func unansweredID(data []byte, status uint32) (id []byte) {
	const header = 4
	if len(data) < header {
		return nil
	}
	attributes, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return nil
	}
	waits, other := false, false
	for attributes.Next() {
		value := attributes.Bytes()
		switch kind := attributes.Type(); kind {
		case ctTuple:
			id = append(id, nested(kind, value)...)
		case ctZone, ctID:
			id = append(id, attribute(kind, value...)...)
		case ctStatus:
			other = len(value) != 4 || binary.BigEndian.Uint32(value)&status != 0
		case ctProtocolInfo:
			waits = tcpState(value) == ctSYNSent
		}
	}
	if !waits || other || attributes.Err() != nil {
		return nil
	}
	return id
}

// tcpState returns the state in the attribute ctProtocolInfo; 0: none.
func tcpState(info []byte) (state byte) {
	for _, kind := range []uint16{ctInfoTCP, ctTCPState} {
		attributes, err := netlink.NewAttributeDecoder(info)
		if err != nil {
			return 0
		}
		for info = nil; attributes.Next(); {
			if attributes.Type() == kind {
				info = attributes.Bytes()
			}
		}
	}
	if len(info) != 1 {
		return 0
	}
	return info[0]
}
