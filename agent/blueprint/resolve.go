package blueprint

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// resolveTime bounds the lookup of a host name that the bootstrap needs as an address.
const resolveTime = 3 * time.Second

// resolveAddress resolves host:port with the host's resolver and returns the first address found. A
// host that is an IP address needs no lookup.
func resolveAddress(ctx context.Context, address string) (netip.AddrPort, error) {
	if parsed, err := netip.ParseAddrPort(address); err == nil {
		return parsed, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("invalid port in %q: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(found[0].Unmap(), uint16(number)), nil
}
