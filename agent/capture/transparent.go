package capture

import (
	"errors"
	"fmt"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// With Settings.PreserveClientAddress, Envoy calls the application from the client's address and
// marks these connections. Policy routes lead answers with the mark to Envoy instead of the client.
// Mark and routing table are Istio's. The policy rule has a fixed priority: without one the kernel
// would add another rule each time.
const (
	originalSourceMark = 1337
	routeTable         = 133
	rulePriority       = 1337
	manglePriority     = -150
)

// toProxy redirects a connection to Envoy's inbound listener by TPROXY, without NAT.
type toProxy struct{}

func (toProxy) text() string { return fmt.Sprintf("tproxy to :%d", InboundPort) }

func (toProxy) exprs() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: register,
		Data: binaryutil.BigEndian.PutUint16(InboundPort)}, &expr.TProxy{RegPort: register}}
}

// marked matches packets with the mark, or packets of connections with the mark.
type marked struct{ connection bool }

func (m marked) text() string { return fmt.Sprintf("%s mark %#x", m.of(), originalSourceMark) }

func (m marked) of() string {
	if m.connection {
		return "ct"
	}
	return "meta"
}

func (m marked) exprs() []expr.Any {
	load := expr.Any(&expr.Meta{Key: expr.MetaKeyMARK, Register: register})
	if m.connection {
		load = &expr.Ct{Key: expr.CtKeyMARK, Register: register}
	}
	return []expr.Any{load, equal(binaryutil.NativeEndian.PutUint32(originalSourceMark)...)}
}

func (marked) holds(*Connection) bool { return false }

// setMark marks the packet, or its connection.
type setMark struct{ marked }

func (m setMark) text() string {
	return fmt.Sprintf("%s mark set %#x", m.of(), originalSourceMark)
}

func (m setMark) exprs() []expr.Any {
	store := expr.Any(&expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true})
	if m.connection {
		store = &expr.Ct{Key: expr.CtKeyMARK, Register: register, SourceRegister: true}
	}
	return []expr.Any{&expr.Immediate{Register: register,
		Data: binaryutil.NativeEndian.PutUint32(originalSourceMark)}, store}
}

// transparent matches packets to a socket that accepts connections to any address.
type transparent struct{}

func (transparent) text() string { return "socket transparent 1" }

func (transparent) exprs() []expr.Any {
	return []expr.Any{&expr.Socket{Key: expr.SocketKeyTransparent, Register: register}, equal(1)}
}

func (transparent) holds(*Connection) bool { return false }

// transparentChain is the chain for inbound rules without address translation.
func transparentChain(rules []Rule) Chain {
	for i := range rules {
		if rules[i].Decision == Inbound {
			rules[i].Action = toProxy{}
		}
	}
	return Chain{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: inboundPriority,
		Rules: append([]Rule{rule(ruleLoopback, Direct, loopback{arriving: true}),
			rule(ruleRedirected, Direct, redirected{})}, rules...)}
}

// answersChain marks the application's answers, so that the policy routes lead them to Envoy.
func answersChain() Chain {
	return Chain{Name: "answers", Type: "route", Hook: "output", Priority: manglePriority,
		Rules: []Rule{
			{ConfigKey: ruleOriginalSource, Matches: []match{marked{}},
				Action: setMark{marked{connection: true}}},
			{ConfigKey: ruleOriginalSource, Matches: []match{marked{connection: true}},
				Action: setMark{}},
		}}
}

// policyRoutes adds or deletes the policy rules and routes that deliver marked packets locally.
// They have the protocol "kernel", because systemd-networkd deletes those of unknown protocols.
func policyRoutes(add bool) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("change the policy routing rules: %w", err)
	}
	defer func() { _ = conn.Close() }()
	rule, route := uint16(unix.RTM_DELRULE), uint16(unix.RTM_DELROUTE)
	flags, done := netlink.Request|netlink.Acknowledge, []error{unix.ENOENT, unix.ESRCH}
	if add {
		rule, route = unix.RTM_NEWRULE, unix.RTM_NEWROUTE
		flags, done = flags|netlink.Create|netlink.Excl, []error{unix.EEXIST}
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		rules, routes := netlink.NewAttributeEncoder(), netlink.NewAttributeEncoder()
		rules.Uint32(unix.FRA_PRIORITY, rulePriority)
		rules.Uint32(unix.FRA_FWMARK, originalSourceMark)
		rules.Uint32(unix.FRA_TABLE, routeTable)
		rules.Uint8(unix.FRA_PROTOCOL, unix.RTPROT_KERNEL)
		routes.Uint32(unix.RTA_TABLE, routeTable)
		routes.Uint32(unix.RTA_OIF, loopbackIndex)
		for _, m := range []struct {
			kind    uint16
			header  []byte // struct fib_rule_hdr or struct rtmsg
			encoder *netlink.AttributeEncoder
		}{
			{rule, []byte{family, 0, 0, 0, routeTable, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0}, rules},
			{route, []byte{family, 0, 0, 0, routeTable, unix.RTPROT_KERNEL, unix.RT_SCOPE_HOST,
				unix.RTN_LOCAL, 0, 0, 0, 0}, routes},
		} {
			attributes, err := m.encoder.Encode()
			if err != nil {
				return err
			}
			_, err = conn.Execute(netlink.Message{Data: append(m.header, attributes...),
				Header: netlink.Header{Type: netlink.HeaderType(m.kind), Flags: flags}})
			// The kernel returns EACCES if IPv6 is disabled by disable_ipv6.
			withoutIPv6 := family == unix.AF_INET6 && (errors.Is(err, unix.EAFNOSUPPORT) ||
				errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES))
			if err != nil && !withoutIPv6 && !errors.Is(err, done[0]) &&
				!errors.Is(err, done[len(done)-1]) {
				return fmt.Errorf("change the policy routing rules: %w", err)
			}
		}
	}
	return nil
}
