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

// hostFamilies returns one non-loopback address of this host for each address family that has such
// an address, even if it is link-local. If the addresses cannot be listed, it returns a placeholder
// for each family.
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

// reached returns the addresses at which a listening socket accepts connections: the socket's own
// address or, if that is unspecified, those of host with a matching family.
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
