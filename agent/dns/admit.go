package dns

import (
	"net"
	"net/netip"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/sockdiag"
)

// maxShared is the number of concurrent queries to upstreams that are admitted without a limit per
// user.
const maxShared = 512

// forwardLimits limit the concurrent queries to upstreams beyond maxShared: Total for all users
// together, PerKey for each user. A query whose socket is already closed counts for UnknownUser, so
// one user can occupy PerKey slots twice. Total must therefore exceed twice PerKey.
var forwardLimits = admission.Limits{Total: 512, PerKey: 128}

// tcpLimits are the limits of TCP connections, per user of this host.
var tcpLimits = admission.Limits{Total: 256, PerKey: 128}

// enter admits a UDP query to the upstreams and returns the function that releases its slot, or nil
// if no slot is free. It looks up the user only beyond maxShared, because that takes about 100 µs.
func (s *Server) enter(from netip.AddrPort) (leave func()) {
	select {
	case s.shared <- struct{}{}:
		return func() { <-s.shared }
	default:
	}
	if slot, ok := s.slots.Acquire(keyOf(sockdiag.UDP, from), nil); ok {
		return slot.Release
	}
	return nil
}

// keyOfTCP returns the key of the user at the other end of a connection. If the connection was
// redirected, the remote address of the user's socket is that of the original resolver. The socket
// is therefore found by its local address only.
func (s *Server) keyOfTCP(c net.Conn) admission.ClientKey {
	key := admission.KeyOfTCP(c)
	from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	if key.Local() || !s.local.has(from.Addr()) {
		return key
	}
	return keyOf(sockdiag.TCP, from)
}

// keyOf returns the key of the user whose socket has the given local address. The socket's remote
// address is ignored, because that of a redirected query is the original resolver. If sockets of
// several users have the address, the key is that of UnknownUser, so that no user can occupy slots
// of another.
func keyOf(protocol sockdiag.Protocol, address netip.AddrPort) admission.ClientKey {
	key, rank := admission.KeyOfUser(admission.UnknownUser), 0
	ip := address.Addr().Unmap().WithZone("")
	_ = sockdiag.EachSocketOnPorts(protocol, address.Port(), address.Port(),
		func(one sockdiag.Socket) {
			this, owner := 0, admission.KeyOfUser(one.UID)
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
				key = admission.KeyOfUser(admission.UnknownUser)
			}
		}, sockdiag.Established, sockdiag.Unconnected)
	return key
}
