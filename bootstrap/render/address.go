package render

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/bootstrap"
)

func (b *builder) pipe(path string, mode uint32) *corev3.Address {
	if len(path) > bootstrap.MaxSocketPath {
		b.fail("the socket's path %s is longer than %d bytes; choose a shorter [paths] runtime_dir",
			path, bootstrap.MaxSocketPath)
	}
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path,
		Mode: mode}}}
}

func socketAddress(protocol corev3.SocketAddress_Protocol, host string,
	port uint16) *corev3.Address {
	address := &corev3.SocketAddress{
		Protocol:      protocol,
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: address}}
}

// splitAddress parses host:port with a port from 1 to 65535.
func splitAddress(address string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port", address)
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return "", 0, fmt.Errorf("%q: the port is not a number from 1 to 65535", address)
	}
	return host, uint16(number), nil
}

// ipAddress parses IP:port or [IP]:port.
func ipAddress(address string, protocol corev3.SocketAddress_Protocol) (*corev3.Address, error) {
	host, port, err := splitAddress(address)
	if err != nil {
		return nil, err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("%q: %q is not an IP address", address, host)
	}
	return socketAddress(protocol, ip.String(), port), nil
}

// families reports which address families the node has.
func families(n bootstrap.Node) (v4, v6 bool) {
	for _, ip := range n.IPs {
		if ip.Is4() || ip.Is4In6() {
			v4 = true
		} else if ip.IsValid() {
			v6 = true
		}
	}
	return v4, v6
}

// wildcard returns the address of a listener on all addresses. On a node with IPv6 one socket
// serves both families.
func (b *builder) wildcard(port uint16) *corev3.Address {
	if _, v6 := families(b.in.Node); v6 {
		address := socketAddress(corev3.SocketAddress_TCP, "::", port)
		address.GetSocketAddress().Ipv4Compat = true
		return address
	}
	return socketAddress(corev3.SocketAddress_TCP, "0.0.0.0", port)
}

// listenAddress parses host:port of a listener. No host, 0.0.0.0 and :: mean all addresses.
func (b *builder) listenAddress(address string) (*corev3.Address, error) {
	host, port, err := splitAddress(address)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return b.wildcard(port), nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("%q: %q is not an IP address", address, host)
	}
	switch {
	case ip == netip.IPv4Unspecified():
		return b.wildcard(port), nil
	case ip == netip.IPv6Unspecified():
		both := socketAddress(corev3.SocketAddress_TCP, "::", port)
		both.GetSocketAddress().Ipv4Compat = true
		return both, nil
	}
	return socketAddress(corev3.SocketAddress_TCP, ip.String(), port), nil
}
