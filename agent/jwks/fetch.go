package jwks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"outrider.org/outrider/agent/fetch"
)

// openIDConfiguration is the path of an issuer's OpenID configuration (OpenID Connect Discovery
// 1.0).
const openIDConfiguration = "/.well-known/openid-configuration"

// maxErrorBytes bounds the text of an error, because TLS errors may quote a certificate.
const maxErrorBytes = 300

var errTotal = fmt.Errorf("the key sets of all issuers are larger than %d MiB", maxTotal>>20)

// result is the result of a fetch.
type result struct {
	from Source
	text string
	err  error
}

// fetch fetches the key set of a source.
func (f *Fetcher) fetch(ctx context.Context, from Source, timeout time.Duration) result {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := result{from: from}
	var text []byte
	uri := from.URI
	if uri == "" {
		uri, r.err = f.discover(ctx, from.Issuer)
	}
	if r.err == nil {
		text, r.err = f.get(ctx, uri)
	}
	if r.err == nil {
		r.err = checkFetched(text)
	}
	if ctx.Err() == context.DeadlineExceeded && r.err != nil {
		r.err = fmt.Errorf("no answer within %v", timeout)
	}
	if r.err != nil {
		if long := r.err.Error(); len(long) > maxErrorBytes {
			r.err = errors.New(strings.ToValidUTF8(long[:maxErrorBytes], "") + "…")
		}
	}
	r.text = string(text)
	return r
}

// discover returns the URI of an issuer's key set, from the issuer's OpenID configuration.
func (f *Fetcher) discover(ctx context.Context, issuer string) (string, error) {
	at := strings.TrimSuffix(issuer, "/") + openIDConfiguration
	text, err := f.get(ctx, at)
	if err != nil {
		return "", err
	}
	var found struct {
		URI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return "", errors.New("the issuer's OpenID configuration is not JSON")
	}
	switch {
	case found.URI == "":
		return "", errors.New("the issuer's OpenID configuration has no jwks_uri")
	case strings.HasPrefix(at, "https:") && !strings.HasPrefix(found.URI, "https:"):
		return "", errors.New("the issuer's OpenID configuration names a jwks_uri that is not https")
	}
	return found.URI, nil
}

func (f *Fetcher) get(ctx context.Context, from string) ([]byte, error) {
	at, err := url.Parse(from)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, errors.New("not an http or https URL")
	}
	return fetch.Get(ctx, f.client(), from, maxBytes)
}

// redacted returns the URL of the source without query, fragment and password, which may be secret.
func (s Source) redacted() string {
	text := cmp.Or(s.URI, s.Issuer)
	if at, err := url.Parse(text); err == nil {
		at.RawQuery, at.Fragment = "", ""
		text = at.Redacted()
	}
	return text
}
