package capture

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	routeHeader     = 12 // bytes of struct rtmsg
	routeTypeOffset = 7  // of rtm_type in struct rtmsg
)

// LookupRoute returns how the kernel would route a packet of a local user to an address: local
// reports that the address belongs to this host, loopback that the packet passes lo. Both are false
// if there is no route.
func LookupRoute(to netip.Addr, uid uint32) (local, loopback bool, err error) {
	to = to.Unmap()
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return false, false, fmt.Errorf("find the route to %s: %w", to, err)
	}
	defer func() { _ = conn.Close() }()
	attributes := netlink.NewAttributeEncoder()
	attributes.Bytes(unix.RTA_DST, to.AsSlice())
	attributes.Uint32(unix.RTA_UID, uid)
	encoded, err := attributes.Encode()
	if err != nil {
		return false, false, err
	}
	header := [routeHeader]byte{unix.AF_INET, uint8(to.BitLen())} // family, length of RTA_DST
	if to.Is6() {
		header[0] = unix.AF_INET6
	}
	answers, err := conn.Execute(netlink.Message{Data: append(header[:], encoded...),
		Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request}})
	if withoutRoute(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("find the route to %s: %w", to, err)
	}
	for _, answer := range answers {
		if len(answer.Data) < routeHeader {
			continue
		}
		local = answer.Data[routeTypeOffset] == unix.RTN_LOCAL
		decoder, err := netlink.NewAttributeDecoder(answer.Data[routeHeader:])
		if err != nil {
			return false, false, fmt.Errorf("find the route to %s: %w", to, err)
		}
		for decoder.Next() {
			if decoder.Type() == unix.RTA_OIF {
				loopback = decoder.Uint32() == loopbackIndex
			}
		}
		if err := decoder.Err(); err != nil {
			return false, false, fmt.Errorf("find the route to %s: %w", to, err)
		}
	}
	return local, loopback || local, nil
}

// withoutRoute reports whether an error means that no route exists, or that a route prohibits the
// packet.
func withoutRoute(err error) bool {
	for _, one := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}
