package capture

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"outrider.org/outrider/agent/sockdiag"
)

// Intervals of the check whether Envoy serves. They bound how long the host waits for a dead Envoy:
// deadLimit + checkEvery for one that has exited, checkEvery + stallLimit + checkStall for one that
// is stopped. A connected agent triggers an extra check when Envoy exits or becomes live.
const (
	checkEvery = 800 * time.Millisecond
	checkFast  = 20 * time.Millisecond  // interval while rules are in force but no Envoy listens
	checkStall = 200 * time.Millisecond // interval while a connection waits for Envoy to accept it
	deadLimit  = 800 * time.Millisecond
)

// envoyCheck determines whether Envoy accepts captured connections. It needs neither the agent nor
// Envoy's admin interface.
type envoyCheck struct {
	user   uint32
	gone   bool // no socket listens: Envoy has exited and may be restarted
	looked time.Time
	serves AddressFamilies // result of the last call of look
	stall  stall
}

// look returns the families in which sockets of Envoy's user listen on both ports and all
// addresses, and accept connections. If there are none, it returns the reason.
func (c *envoyCheck) look(now time.Time) (AddressFamilies, string) {
	// Limit the time that counts as passed: this process may have been suspended as well.
	passed := min(now.Sub(c.looked), 2*checkEvery)
	c.looked = now
	sockets, err := listeners()
	if err != nil { // this process lacks descriptors or memory
		if c.stall.waited += passed; c.stall.waited >= stallLimit {
			c.serves = AddressFamilies{}
		}
		return c.serves, err.Error()
	}
	families, reason := c.evaluate(sockets)
	c.serves = families
	if !families.any() {
		c.stall.reset()
		return families, reason
	}
	othersWait := slices.ContainsFunc(sockets, func(s sockdiag.Socket) bool {
		return s.Address.Port() == OutboundPort && s.UID == c.user && s.ReceiveQueue > 0
	})
	if c.stall.check(now, passed, families, c.user, othersWait) {
		c.serves = AddressFamilies{}
		return c.serves, fmt.Sprintf("Envoy does not accept connections on port %d", OutboundPort)
	}
	return families, reason
}

// listeners returns the sockets that listen on Envoy's ports. The kernel filters by port, because a
// host may have many other sockets.
func listeners() (all []sockdiag.Socket, err error) {
	err = sockdiag.EachSocketOnPorts(sockdiag.TCP, OutboundPort, InboundPort,
		func(s sockdiag.Socket) {
			all = append(all, s)
		}, sockdiag.Listen)
	return all, err
}

// evaluate returns the families in which Envoy listens. It excludes families in which another
// user's socket accepts connections to Envoy's ports.
func (c *envoyCheck) evaluate(sockets []sockdiag.Socket) (AddressFamilies, string) {
	listens := map[uint16]AddressFamilies{}
	var foreign AddressFamilies
	stranger := ""
	for _, s := range sockets {
		port := s.Address.Port()
		if port != OutboundPort && port != InboundPort {
			continue
		}
		if s.UID != c.user {
			stranger = fmt.Sprintf("user %d listens on port %d, Envoy's user is %d", s.UID, port,
				c.user)
			foreign = foreign.or(accepts(s))
			continue
		}
		if s.Address.Addr().IsUnspecified() {
			listens[port] = listens[port].or(accepts(s))
		}
	}
	out, in := listens[OutboundPort], listens[InboundPort]
	both := AddressFamilies{IPv4: out.IPv4 && in.IPv4 && !foreign.IPv4,
		IPv6: out.IPv6 && in.IPv6 && !foreign.IPv6}
	c.gone = stranger == "" && !both.any()
	switch {
	case both.any():
		return both, ""
	case stranger != "":
		return both, stranger
	case !out.any():
		return both, fmt.Sprintf("Envoy does not listen on port %d", OutboundPort)
	}
	return both, fmt.Sprintf("Envoy does not listen on port %d", InboundPort)
}

// accepts returns the families of the connections that a listener accepts.
func accepts(s sockdiag.Socket) AddressFamilies {
	address := s.Address.Addr()
	return AddressFamilies{IPv4: address.Unmap().Is4() || address.IsUnspecified() && !s.IPv6Only,
		IPv6: address.Is6() && !address.Is4In6()}
}

// capturedConnections reports whether Envoy has captured connections: sockets at its capture ports
// or, with TPROXY, sockets whose local address is a client's.
func capturedConnections(envoy uint32) (bool, error) {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	local := map[netip.Addr]bool{}
	for _, a := range own {
		if network, err := netip.ParsePrefix(a.String()); err == nil {
			local[network.Addr()] = true
		}
	}
	found := false
	err = sockdiag.EachSocket(sockdiag.TCP, func(s sockdiag.Socket) {
		port := s.Address.Port()
		address := s.Address.Addr().Unmap()
		found = found || port == OutboundPort || port == InboundPort ||
			s.UID == envoy && !address.IsLoopback() && !local[address]
	}, sockdiag.Established, sockdiag.FinWait1, sockdiag.FinWait2, sockdiag.CloseWait)
	return found, err
}
