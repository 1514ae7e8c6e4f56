// Package fetch downloads documents over HTTP from servers that are not trusted. A server can
// neither send more than a limit, nor redirect to plaintext, nor redirect the program to a service
// on its own host.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxRedirects is the number of redirects that a document may need.
const maxRedirects = 3

// NewClient returns a client that trusts the system's roots and accepts redirects to https:// only.
// transport is http.DefaultTransport if nil.
func NewClient(transport http.RoundTripper) *http.Client {
	return &http.Client{Transport: transport,
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if next.URL.Scheme != "https" || len(via) > maxRedirects {
				return errors.New("the server redirects to a URL without https, or too often")
			}
			return nil
		}}
}

// Get returns the body of a response with status 200, or an error if it exceeds maxBytes bytes. No
// error contains the URL.
func Get(ctx context.Context, client *http.Client, url string, maxBytes int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, unwrap(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, unwrap(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %d %s", answer.StatusCode,
			http.StatusText(answer.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > maxBytes {
		return nil, fmt.Errorf("the response is larger than %d KiB", maxBytes>>10)
	}
	return body, nil
}

// unwrap returns the cause of an error of net/http, whose own text contains the URL.
func unwrap(err error) error {
	if cause := errors.Unwrap(err); cause != nil {
		return cause
	}
	return err
}
