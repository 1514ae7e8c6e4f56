package hostconflict

import (
	"cmp"
	"fmt"
	"net/netip"

	"outrider.org/outrider/agent/sockdiag"
)

// FindPortHolder returns the socket that prevents Envoy from binding the address at, if there is
// one. ipv4 reports whether Envoy's IPv6 socket will accept IPv4 as well.
func FindPortHolder(
	at netip.AddrPort, ipv4 bool, sockets []sockdiag.Socket,
) (holder sockdiag.Socket, ok bool) {
	for _, s := range sockets {
		if s.Address.Port() == at.Port() && overlap(at.Addr().Unmap(), ipv4, s) {
			return s, true
		}
	}
	return holder, false
}

// overlap reports whether a socket's address prevents a bind to the address at, if the ports are
// the same. ipv4 reports whether a socket that is bound to at accepts IPv4 as well.
func overlap(at netip.Addr, ipv4 bool, s sockdiag.Socket) bool {
	has := s.Address.Addr().Unmap()
	switch {
	case has == at:
		return true
	case has.Is4() == at.Is4():
		return has.IsUnspecified() || at.IsUnspecified()
	case has.Is6():
		return has.IsUnspecified() && !s.IPv6Only
	}
	return at.IsUnspecified() && ipv4
}

// DescribeSocketOwner describes the owner of a socket: "nginx (pid 12, nginx.service) of user
// root".
func (h Host) DescribeSocketOwner(s sockdiag.Socket) string {
	return fmt.Sprintf("%s of user %s", cmp.Or(h.ListenerProgram(s), "a program"), userName(s.UID))
}
