// Package wasm fetches the Wasm modules of Envoy's extensions, over HTTP and from image registries.
package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"outrider.org/outrider/agent/fetch"
)

// MaxBytes is the maximum size of a module.
const MaxBytes = 64 << 20

const (
	maxRedirects = 10
	magic        = "\x00asm" // first bytes of a module
	headerBytes  = 8         // magic and version
	lastSection  = 13        // highest ID of a section
)

var schemes = []string{"oci", "http", "https"}

// Client fetches Wasm modules. Its methods may be called concurrently.
type Client struct {
	// AllowsLocalAddress reports whether hosts may have local addresses: loopback, link-local, or
	// of a cloud's metadata service. nil: none may.
	AllowsLocalAddress func(host string) bool
}

// Module is a Wasm module.
type Module struct {
	Code       []byte
	SHA256Sums []string // SHA-256 sums (hexadecimal) by which a configuration may refer to the module
}

func (c *Client) allowed(host string) bool {
	return c.AllowsLocalAddress != nil && c.AllowsLocalAddress(host)
}

// Fetch fetches a module from an URL: http://, https:// or oci://. secret is a Docker configuration
// (JSON) with the credentials of registries, or "". Errors may have credentials of the URL, which
// RedactURL removes.
func (c *Client) Fetch(ctx context.Context, from, secret string) (Module, error) {
	switch scheme, rest, _ := strings.Cut(from, "://"); scheme {
	case "oci":
		return c.fetchImage(ctx, rest, secret)
	case "http", "https":
		return c.get(ctx, from)
	}
	return Module{}, CheckURL(from)
}

// CheckURL returns an error if Fetch does not support the scheme of a URL.
func CheckURL(from string) error {
	if scheme, _, _ := strings.Cut(from, "://"); !slices.Contains(schemes, scheme) {
		return fmt.Errorf("Wasm module %q: only http://, https:// and oci:// are supported", from)
	}
	return nil
}

// get fetches a module over HTTP.
func (c *Client) get(ctx context.Context, from string) (found Module, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return found, err
	}
	response, err := c.http().Do(request)
	if err != nil {
		return found, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return found, fmt.Errorf("GET %s: %s", from, response.Status)
	}
	if response.ContentLength <= MaxBytes {
		found.Code, err = io.ReadAll(io.LimitReader(response.Body, MaxBytes+1))
	}
	if err == nil && max(response.ContentLength, int64(len(found.Code))) > MaxBytes {
		err = fmt.Errorf("%s has more than %d MB", from, MaxBytes>>20)
	}
	found.SHA256Sums = []string{sumOf(found.Code)}
	return found, err
}

func sumOf(code []byte) string {
	sum := sha256.Sum256(code)
	return hex.EncodeToString(sum[:])
}

// HasSHA256 reports whether a module has a SHA-256 sum (hexadecimal), or want is "".
func (m Module) HasSHA256(want string) bool {
	return want == "" || slices.Contains(m.SHA256Sums, strings.ToLower(want))
}

// IsWasm reports whether the module begins as a Wasm module does.
func (m Module) IsWasm() bool { return bytes.HasPrefix(m.Code, []byte(magic)) }

// isCutOff reports whether the module ends within a section. Envoy finds other mistakes.
func (m Module) isCutOff() bool {
	if len(m.Code) < headerBytes {
		return true
	}
	for rest := m.Code[headerBytes:]; len(rest) > 0 && rest[0] <= lastSection; {
		size, n := binary.Uvarint(rest[1:])
		if rest = rest[1:]; n <= 0 || size > uint64(len(rest)-n) {
			return true
		}
		rest = rest[n+int(size):]
	}
	return false
}

// http returns an HTTP client that fetches one Wasm module. It follows no redirect from TLS to
// plaintext. It connects neither to this host nor to link-local addresses or a cloud's metadata
// service, unless they are allowed: whoever names a module must not learn what answers there.
func (c *Client) http() *http.Client {
	transport := http.DefaultClient.Transport
	if transport == nil {
		transport = fetch.NewTransport(c.allowed, nil)
	}
	return &http.Client{Transport: transport,
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			switch host := next.URL.Hostname(); {
			case len(via) > maxRedirects:
				return errors.New("too many redirects")
			case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
				return errors.New("redirect from https:// to http:// refused")
			case !c.allowed(host) && fetch.ResolvesToLocal(next.Context(), host):
				return errors.New("redirect to a local address refused")
			}
			return nil
		}}
}

// urlSecrets matches possible credentials in the URLs of a text: user information and query.
var urlSecrets = regexp.MustCompile(`(//)[^/\s"@]+@|\?[^\s"]*[^\s":]`)

// RedactURL removes possible credentials from the URLs in a text.
func RedactURL(text string) string { return urlSecrets.ReplaceAllString(text, "$1") }
