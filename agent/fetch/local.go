package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	dialTimeout    = 10 * time.Second
	maxHeaderBytes = 64 << 10
)

// local contains the addresses of the host itself, link-local and multicast addresses, and those of
// clouds' metadata services.
var local = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("::/128"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
	netip.MustParsePrefix("fd00:ec2::/32"),      // Amazon
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
}

// translations lists the IPv6 prefixes whose addresses contain an IPv4 address, with the possible
// positions of its bytes: NAT64 (RFC 6052), local-use NAT64 with prefixes of any length (RFC 8215),
// and 6to4.
var translations = []struct {
	prefix netip.Prefix
	bytes  [][4]int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), [][4]int{{12, 13, 14, 15}}},
	{netip.MustParsePrefix("64:ff9b:1::/48"), [][4]int{{12, 13, 14, 15}, {9, 10, 11, 12},
		{7, 9, 10, 11}, {6, 7, 9, 10}}},
	{netip.MustParsePrefix("2002::/16"), [][4]int{{2, 3, 4, 5}}},
}

// IsLocal reports whether an address is loopback, link-local, multicast, unspecified, or that of a
// cloud's metadata service. It also checks the IPv4 address within a NAT64 or 6to4 address.
func IsLocal(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	contains := func(ip netip.Addr) bool {
		return slices.ContainsFunc(local, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	for _, t := range translations {
		if !t.prefix.Contains(ip) {
			continue
		}
		all := ip.As16()
		for _, at := range t.bytes {
			v4 := netip.AddrFrom4([4]byte{all[at[0]], all[at[1]], all[at[2]], all[at[3]]})
			// The actual length of a local-use NAT64 prefix is unknown. At the position for another
			// length the bytes may be zeros of the prefix, so addresses that begin with 0 do not
			// count.
			if contains(v4) && (v4.As4()[0] != 0 || len(t.bytes) == 1) {
				return true
			}
		}
	}
	return contains(ip)
}

// isOwn reports whether an address belongs to an interface of this host, so that connections to it
// use loopback.
func isOwn(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	addresses, _ := net.InterfaceAddrs() // if they cannot be listed, none is known
	return slices.ContainsFunc(addresses, func(a net.Addr) bool {
		own, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		address, ok := netip.AddrFromSlice(own.IP)
		return ok && address.Unmap() == ip
	})
}

func isLocalOrOwn(ip netip.Addr) bool { return IsLocal(ip) || isOwn(ip) }

// guard is a transport that refuses to connect to local addresses unless the host is allowed.
type guard struct {
	allowed func(host string) bool
	direct  http.RoundTripper
	proxy   http.RoundTripper // for requests that the environment's HTTP proxy forwards
}

// NewTransport returns a transport that connects to local addresses (IsLocal), and to addresses of
// this host, only for hosts for which allowsLocal returns true. It passes names in lower case and
// without a final dot to allowsLocal. It checks each address to which it connects. For a request
// through the environment's HTTP proxy, it checks the addresses to which this host resolves the
// name. It trusts roots, or the system's roots if roots is nil.
func NewTransport(allowsLocal func(host string) bool, roots *x509.CertPool) http.RoundTripper {
	g := guard{allowed: allowsLocal}
	base := func() *http.Transport {
		return &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true,
			DisableCompression: true, TLSHandshakeTimeout: dialTimeout,
			MaxResponseHeaderBytes: maxHeaderBytes,
			TLSClientConfig:        &tls.Config{RootCAs: roots}}
	}
	direct, proxy := base(), base()
	direct.DialContext = g.dial
	proxy.Proxy = http.ProxyFromEnvironment
	g.direct, g.proxy = direct, proxy
	return g
}

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(request *http.Request) (*http.Response, error) {
	proxy, err := http.ProxyFromEnvironment(request)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return g.direct.RoundTrip(request)
	}
	if host := request.URL.Hostname(); !g.allowed(normalize(host)) &&
		ResolvesToLocal(request.Context(), host) {
		return nil, fmt.Errorf("no connection is made, because %s is a local address",
			request.URL.Host)
	}
	return g.proxy.RoundTrip(request)
}

func (g guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if !g.allowed(normalize(host)) {
		dialer.Control = refuseLocal
	}
	return dialer.DialContext(ctx, network, address)
}

func normalize(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// refuseLocal returns an error if an address is local, or is one of this host's. It is a
// net.Dialer.Control.
func refuseLocal(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if isLocalOrOwn(to.Addr()) {
		return fmt.Errorf("no connection is made, because %s is a local address", to.Addr())
	}
	return nil
}

// ResolvesToLocal reports whether a name resolves to a local address or to one of this host. It
// returns false for a name that this host cannot resolve, as is common behind an HTTP proxy.
func ResolvesToLocal(ctx context.Context, host string) bool {
	found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	return slices.ContainsFunc(found, isLocalOrOwn)
}
