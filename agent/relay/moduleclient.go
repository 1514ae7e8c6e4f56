package relay

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"syscall"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
)

const (
	maxRedirects      = 10
	moduleDialTimeout = 10 * time.Second
)

// newModuleClient returns a client for one module. It follows no redirect from TLS to plaintext. It
// connects neither to this host nor to its link or a cloud's metadata service, unless local is set:
// an upstream server must not learn what answers there.
func newModuleClient(local bool) *http.Client {
	transport := http.DefaultClient.Transport
	if transport == nil && !local {
		transport = newGuarded()
	}
	return &http.Client{Transport: transport,
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return errors.New("too many redirects")
			case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
				return errors.New("redirect from https:// to http:// refused")
			case !local && isBlocked(next):
				return errors.New("redirect to a local address refused")
			}
			return nil
		}}
}

// guarded is a transport that refuses local addresses, by the address to which it connects.
type guarded struct {
	direct http.RoundTripper
	proxy  http.RoundTripper // for requests that an HTTP proxy of the environment forwards
}

func newGuarded() guarded {
	direct := &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: moduleDialTimeout,
		DialContext:         (&net.Dialer{Timeout: moduleDialTimeout, Control: refuseLocal}).DialContext}
	return guarded{direct, &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: moduleDialTimeout, Proxy: http.ProxyFromEnvironment}}
}

// RoundTrip implements http.RoundTripper.
func (g guarded) RoundTrip(request *http.Request) (*http.Response, error) {
	proxy, err := http.ProxyFromEnvironment(request)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return g.direct.RoundTrip(request)
	}
	if isBlocked(request) {
		return nil, fmt.Errorf("%s is a local address", request.URL.Host)
	}
	return g.proxy.RoundTrip(request)
}

// refuseLocal refuses a connection to a local address, for net.Dialer.Control.
func refuseLocal(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if isLocal(to.Addr()) {
		return fmt.Errorf("%s is a local address, of which no Wasm module is fetched", to.Addr())
	}
	return nil
}

// oracleMetadata is the metadata service that is not in the prefixes of package auth.
var oracleMetadata = netip.MustParseAddr("192.0.0.192")

// isLocal reports whether an address is loopback, link-local, unspecified, or that of a cloud's
// metadata service.
func isLocal(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return ip == oracleMetadata ||
		slices.ContainsFunc(auth.DefaultBlockedRealmPrefixes(),
			func(p netip.Prefix) bool { return p.Contains(ip) })
}

// isBlocked reports whether the host of a request has a local address. A host that this host cannot
// resolve, as behind an HTTP proxy, has none.
func isBlocked(request *http.Request) bool {
	found, _ := net.DefaultResolver.LookupNetIP(request.Context(), "ip", request.URL.Hostname())
	return slices.ContainsFunc(found, isLocal)
}

// urlSecrets matches what may be a credential in the URLs of a text: user information and query.
var urlSecrets = regexp.MustCompile(`(//)[^/\s"@]+@|\?[^\s"]*[^\s":]`)

// withoutSecrets removes possible credentials from the URLs in a text.
func withoutSecrets(text string) string { return urlSecrets.ReplaceAllString(text, "$1") }
