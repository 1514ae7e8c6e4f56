package exposure

import (
	"net"
	"net/netip"
	"slices"

	"outrider.org/outrider/agent/sockdiag"
)

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// hostFamilies returns an address of this host for each family in which other hosts may reach it;
// a link-local address is one of IPv6. If the addresses cannot be listed, both families count.
func hostFamilies() []netip.Addr {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.MustParseAddr("2001:db8::1")}
	}
	var found []netip.Addr
	for _, a := range addresses {
		network, err := netip.ParsePrefix(a.String())
		if err != nil || network.Addr().IsLoopback() {
			continue
		}
		address := network.Addr().Unmap()
		if !slices.ContainsFunc(found, func(f netip.Addr) bool { return f.Is4() == address.Is4() }) {
			found = append(found, address)
		}
	}
	return found
}

// reached returns the addresses of host, or the socket's own one, to which connections reach a
// listening socket.
func reached(s sockdiag.Socket, host []netip.Addr) []netip.Addr {
	at := s.Address.Addr()
	if !at.IsUnspecified() {
		return []netip.Addr{at.Unmap()}
	}
	var all []netip.Addr
	for _, a := range host {
		if a.Is6() && at.Is6() || a.Is4() && !s.IPv6Only {
			all = append(all, a)
		}
	}
	return all
}
