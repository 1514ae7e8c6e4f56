package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A match is a condition of a rule. It has three forms: nft text, expressions for the kernel, and a
// Go function that evaluates it for a connection.
type match interface {
	text() string
	exprs() []expr.Any
	holds(c *Connection) bool
}

const loopbackIndex = 1 // interface index of lo in every network namespace

// register is the nftables register through which an expression passes its value to the next one.
const register = 1

func equal(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}
}

// isTCP limits a rule to TCP.
type isTCP struct{}

func (isTCP) text() string { return "meta l4proto tcp" }

func (isTCP) exprs() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		equal(unix.IPPROTO_TCP)}
}

func (isTCP) holds(c *Connection) bool { return c.Protocol == "tcp" }

// notSYN matches TCP packets other than the first SYN of a connection. It does not use conntrack,
// which considers a connection new that was established before conntrack was loaded.
type notSYN struct{}

const (
	tcpFlagsOffset = 13
	tcpSYN         = 0x02
	tcpStateFlags  = 0x17 // FIN, SYN, RST, ACK
)

func (notSYN) text() string { return "tcp flags & (fin | syn | rst | ack) != syn" }

func (notSYN) exprs() []expr.Any {
	return append(isTCP{}.exprs(),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader,
			Offset: tcpFlagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1,
			Mask: []byte{tcpStateFlags}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: []byte{tcpSYN}})
}

func (notSYN) holds(*Connection) bool { return false }

// family matches packets of one address family.
type family struct{ ipv6 bool }

func (f family) text() string {
	if f.ipv6 {
		return "meta nfproto ipv6"
	}
	return "meta nfproto ipv4"
}

func (f family) exprs() []expr.Any {
	number := byte(unix.NFPROTO_IPV4)
	if f.ipv6 {
		number = unix.NFPROTO_IPV6
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, equal(number)}
}

func (f family) holds(c *Connection) bool { return c.Destination.Addr().Is6() == f.ipv6 }

// user matches sockets of the users in a set.
type user struct{ set *Set }

func (m user) text() string { return "meta skuid @" + m.set.Name }

func (m user) exprs() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: register}, lookup(m.set, false)}
}

func (m user) holds(c *Connection) bool {
	return m.set.has(binaryutil.NativeEndian.PutUint32(c.UID))
}

// loopback matches packets that this host sends over lo: to its own addresses, or because of an
// administrator's route. arriving selects the variant for chains of incoming packets.
type loopback struct{ arriving bool }

func (l loopback) text() string {
	if l.arriving {
		return `iif "lo"`
	}
	return `oif "lo"`
}

func (l loopback) exprs() []expr.Any {
	key := expr.MetaKeyOIF
	if l.arriving {
		key = expr.MetaKeyIIF
	}
	return []expr.Any{&expr.Meta{Key: key, Register: register},
		equal(binaryutil.NativeEndian.PutUint32(loopbackIndex)...)}
}

func (l loopback) holds(c *Connection) bool { return c.ViaLoopback && !c.Inbound }

// toHost matches packets to an address of this host, but not packets that the host forwards.
type toHost struct{}

func (toHost) text() string { return "fib daddr type local" }

func (toHost) exprs() []expr.Any {
	return []expr.Any{&expr.Fib{Register: register, FlagDADDR: true, ResultADDRTYPE: true},
		equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)...)}
}

func (toHost) holds(c *Connection) bool { return c.Local }

// port matches TCP connections to a destination port in the set.
type port struct{ set *Set }

func (m port) text() string { return "tcp dport @" + m.set.Name }

func (m port) exprs() []expr.Any {
	return append(isTCP{}.exprs(),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader,
			Offset: 2, Len: 2}, lookup(m.set, false))
}

func (m port) holds(c *Connection) bool {
	return c.Protocol == "tcp" && m.set.has(binaryutil.BigEndian.PutUint16(c.Destination.Port()))
}

// address matches source or destination addresses in (or, if except, not in) a set.
type address struct {
	set            *Set
	source, except bool
}

func (m address) text() string {
	parts := []string{"ip", "daddr"}
	if m.set.Kind == setIPv6 {
		parts[0] = "ip6"
	}
	if m.source {
		parts[1] = "saddr"
	}
	if m.except {
		parts = append(parts, "!=")
	}
	return strings.Join(append(parts, "@"+m.set.Name), " ")
}

func (m address) exprs() []expr.Any {
	payload := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader,
		Offset: 16, Len: 4}
	if m.source {
		payload.Offset = 12
	}
	if m.set.Kind == setIPv6 {
		payload.Offset, payload.Len = 24, 16
		if m.source {
			payload.Offset = 8
		}
	}
	return append(family{m.set.Kind == setIPv6}.exprs(), payload, lookup(m.set, m.except))
}

func (m address) holds(c *Connection) bool {
	a := c.Destination.Addr()
	if m.source {
		a = c.Source
	}
	isFamily := c.Destination.Addr().Is6() == (m.set.Kind == setIPv6)
	return isFamily && m.set.contains(a) != m.except
}

// unit matches sockets of processes in the control groups of a set. All groups of a set are at the
// same level of the hierarchy.
type unit struct {
	set   *Set
	level int
}

// maxLevel is the deepest level of a control group that the kernel can match.
const maxLevel = 255

func (m unit) text() string {
	return fmt.Sprintf("socket cgroupv2 level %d @%s", m.level, m.set.Name)
}

func (m unit) exprs() []expr.Any {
	return []expr.Any{&expr.Socket{Key: expr.SocketKeyCgroupv2, Level: uint32(m.level),
		Register: register}, lookup(m.set, false)}
}

func (m unit) holds(c *Connection) bool {
	return slices.ContainsFunc(m.set.Elements, func(e Element) bool {
		path := strings.Trim(e.Text, `"`)
		return c.CGroup == path || strings.HasPrefix(c.CGroup, path+"/")
	})
}

// redirected matches connections whose destination was translated.
type redirected struct{}

const ctDNAT = 0x20 // IPS_DST_NAT

func (redirected) text() string { return "ct status dnat" }

func (redirected) exprs() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(ctDNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)}}
}

// holds returns false: a rule with this match comes after the rule that redirects the connection,
// at which Explain stops.
func (redirected) holds(*Connection) bool { return false }

// probe matches the connections by which outrider-capture checks whether Envoy accepts.
type probe struct{}

// probeMark is the mark of outrider-capture's sockets. It requires CAP_NET_ADMIN.
const probeMark = 0x4f757472

func (probe) text() string { return fmt.Sprintf("meta mark %#x", probeMark) }

func (probe) exprs() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
		equal(binaryutil.NativeEndian.PutUint32(probeMark)...)}
}

func (probe) holds(*Connection) bool { return false }

func lookup(set *Set, except bool) expr.Any {
	return &expr.Lookup{SourceRegister: register, SetName: set.Name, Invert: except}
}

// has reports whether a set, which must not be an interval set, has a key.
func (s *Set) has(key []byte) bool {
	return slices.ContainsFunc(s.Elements, func(e Element) bool { return slices.Equal(e.Key, key) })
}

// contains reports whether an interval set contains an address.
func (s *Set) contains(a netip.Addr) bool {
	return slices.ContainsFunc(s.Elements, func(e Element) bool {
		network, err := netip.ParsePrefix(e.Text)
		return err == nil && network.Contains(a)
	})
}
