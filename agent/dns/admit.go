package dns

import (
	"net"
	"net/netip"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/sockdiag"
)

// maxShared bounds queries to upstreams at the same time, without a limit per user.
const maxShared = 512

// forwardLimits are the limits of more queries to upstreams at the same time. A user who closes
// sockets early has a second share, of UnknownUser: Total is more than two.
var forwardLimits = admission.Limits{Total: 512, PerKey: 128}

// tcpLimits are the limits of TCP connections, per user of this host.
var tcpLimits = admission.Limits{Total: 256, PerKey: 128}

// enter admits a query to upstreams over UDP and returns its release function, nil if there is no
// slot. It looks up the user only if maxShared is reached, because that takes some 100 µs.
func (s *Server) enter(from netip.AddrPort) (leave func()) {
	select {
	case s.shared <- struct{}{}:
		return func() { <-s.shared }
	default:
	}
	if slot, ok := s.slots.Enter(keyOf(sockdiag.UDP, from), nil); ok {
		return slot.Leave
	}
	return nil
}

// keyOfTCP returns the key of a connection's peer. A redirected connection comes from an address
// of this host, and its socket has another peer, the resolver: the port identifies it.
func (s *Server) keyOfTCP(c net.Conn) admission.Key {
	key := admission.KeyOfTCP(c)
	from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	if key.Local() || !s.local.has(from.Addr()) {
		return key
	}
	return keyOf(sockdiag.TCP, from)
}

// keyOf returns the key of the user whose socket has an address of this host. The peer does not
// matter: it is another one if the query was redirected. Sockets of several users with the same
// address are of UnknownUser, so that none can use the slots of another.
func keyOf(protocol sockdiag.Protocol, address netip.AddrPort) admission.Key {
	key, rank := admission.User(admission.UnknownUser), 0
	ip := address.Addr().Unmap().WithZone("")
	_ = sockdiag.EachAt(protocol, address.Port(), address.Port(), func(one sockdiag.Socket) {
		this, owner := 0, admission.User(one.UID)
		switch {
		case one.Address.Addr().Unmap() == ip:
			this = 2
		case !one.Address.Addr().IsUnspecified() || one.Inode == 0:
		case one.Address.Addr().Is4() == ip.Is4() || ip.Is4() && !one.IPv6Only:
			this = 1
		}
		if this > rank {
			key, rank = owner, this
		} else if this == rank && key != owner {
			key = admission.User(admission.UnknownUser)
		}
	}, sockdiag.Established, sockdiag.Unconnected)
	return key
}
