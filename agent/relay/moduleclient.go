package relay

import (
	"errors"
	"net/http"
	"regexp"

	"outrider.org/outrider/agent/fetch"
)

const maxRedirects = 10

// newModuleClient returns an HTTP client that fetches one Wasm module. The client follows no
// redirect from TLS to plaintext. Unless local is set, it connects neither to this host nor to
// link-local addresses or a cloud's metadata service: an upstream server must not learn what
// answers there.
func newModuleClient(local bool) *http.Client {
	transport := http.DefaultClient.Transport
	if transport == nil && !local {
		transport = fetch.NewTransport(func(string) bool { return false }, nil)
	}
	return &http.Client{Transport: transport,
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return errors.New("too many redirects")
			case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
				return errors.New("redirect from https:// to http:// refused")
			case !local && fetch.ResolvesToLocal(next.Context(), next.URL.Hostname()):
				return errors.New("redirect to a local address refused")
			}
			return nil
		}}
}

// urlSecrets matches possible credentials in the URLs of a text: user information and query.
var urlSecrets = regexp.MustCompile(`(//)[^/\s"@]+@|\?[^\s"]*[^\s":]`)

// withoutSecrets removes possible credentials from the URLs in a text.
func withoutSecrets(text string) string { return urlSecrets.ReplaceAllString(text, "$1") }
