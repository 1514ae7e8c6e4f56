package relay

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"

	"oras.land/oras-go/v2/registry/remote/auth"
)

const maxRedirects = 10

// newModuleClient returns a client for one module. It follows no redirect from TLS to plaintext,
// and none to this host, its link or a cloud's metadata service, unless the module's server is on
// loopback.
func newModuleClient() *http.Client {
	return &http.Client{Transport: http.DefaultClient.Transport,
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			first := via[0].URL
			switch {
			case len(via) > maxRedirects:
				return errors.New("too many redirects")
			case first.Scheme == "https" && next.URL.Scheme != "https":
				return errors.New("redirect from https:// to http:// refused")
			case !isLoopback(first.Host) && isBlocked(next):
				return errors.New("redirect to a local address refused")
			}
			return nil
		}}
}

// isBlocked reports whether the host of a request has an address at which no token server of a
// registry may be. A host that this host cannot resolve, as behind an HTTP proxy, has none.
func isBlocked(request *http.Request) bool {
	found, _ := net.DefaultResolver.LookupNetIP(request.Context(), "ip", request.URL.Hostname())
	return slices.ContainsFunc(found, func(ip netip.Addr) bool {
		return slices.ContainsFunc(auth.DefaultBlockedRealmPrefixes(), func(p netip.Prefix) bool {
			return p.Contains(ip.Unmap().WithZone(""))
		})
	})
}

// urlSecrets matches what may be a credential in the URLs of a text: user information and query.
var urlSecrets = regexp.MustCompile(`(//)[^/\s"@]+@|\?[^\s"]*[^\s":]`)

// withoutSecrets removes possible credentials from the URLs in a text.
func withoutSecrets(text string) string { return urlSecrets.ReplaceAllString(text, "$1") }
