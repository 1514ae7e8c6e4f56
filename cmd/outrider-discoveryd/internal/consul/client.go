package consul

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/agent/readfile"
)

const (
	// blockTime is how long Consul delays the response to a blocking query while nothing changes;
	// Consul adds up to a sixteenth.
	blockTime = time.Minute
	// queryTimeout bounds the duration of a query. A blocking query has blockTime in addition.
	queryTimeout = 20 * time.Second
	// readers is the maximum number of concurrent queries that read one service, in all datacentres
	// together. With four blocking queries per datacentre, 45 datacentres need fewer than the 200
	// connections that Consul accepts from one client.
	readers  = 8
	blocking = 4 // blocking queries per datacentre

	maxAnswer = 64 << 20 // maximum size of a response in bytes
	maxFile   = 1 << 20  // maximum size in bytes of a file with a token or with CA certificates
)

// client sends queries to Consul. It is safe for concurrent use.
type client struct {
	api       *api.Client
	transport *http.Transport
	tokenFile string
	readers   chan struct{}
	timeout   time.Duration // queryTimeout, except in tests
}

func newClient(o Options) (*client, error) {
	dialer := net.Dialer{Timeout: queryTimeout, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		DialContext: dialer.DialContext, MaxIdleConnsPerHost: readers + blocking*max(1, len(o.Datacenters)),
		IdleConnTimeout: 2 * blockTime, ResponseHeaderTimeout: blockTime*17/16 + queryTimeout,
	}
	address, path := o.Address, ""
	scheme, rest, ok := strings.Cut(address, "://")
	switch {
	case ok && scheme == "unix":
		address, path = "http://unix", rest
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
	case !ok || scheme != "http" && scheme != "https":
		return nil, fmt.Errorf("%q is not an address of Consul; write http://HOST:PORT, "+
			"https://HOST:PORT or unix:///PATH", address)
	}
	transport.DialTLSContext = dialTLS(&dialer, o.CAFile)
	consul, err := api.NewClient(&api.Config{Address: address, HttpClient: &http.Client{
		Transport: bounded{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("consul sent an HTTP redirect, which is not followed: its target " +
				"would receive the token")
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("consul at %s: %w", o.Address, err)
	}
	return &client{api: consul, transport: transport, tokenFile: o.TokenFile,
		readers: make(chan struct{}, readers), timeout: queryTimeout}, nil
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// dialTLS returns a function that opens TLS connections. It reads the CA certificates for each
// connection, so that a replaced file takes effect.
func dialTLS(dialer *net.Dialer, caFile string) func(context.Context, string, string) (net.Conn,
	error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if caFile != "" {
			text, err := readfile.Read(caFile, maxFile)
			if err != nil {
				return nil, fmt.Errorf("ca_file: %w", err)
			}
			config.RootCAs = x509.NewCertPool()
			if !config.RootCAs.AppendCertsFromPEM(text) {
				return nil, fmt.Errorf("ca_file: %s has no certificate", caFile)
			}
		}
		secure := tls.Dialer{NetDialer: dialer, Config: config}
		return secure.DialContext(ctx, network, address)
	}
}

// bounded is a RoundTripper that bounds the size of responses.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, maxAnswer)
	}
	return answer, err
}

// options returns the options of a query, with the token. With index 0 the query does not block.
func (c *client) options(ctx context.Context, datacenter string,
	index uint64) (*api.QueryOptions, error) {
	o := &api.QueryOptions{Datacenter: datacenter, WaitIndex: index, WaitTime: blockTime}
	if c.tokenFile != "" {
		text, err := readfile.Read(c.tokenFile, maxFile)
		if err != nil {
			return nil, fmt.Errorf("token_file: %w", err)
		}
		if o.Token = strings.TrimSpace(string(text)); o.Token == "" {
			return nil, fmt.Errorf("token_file: %s is empty", c.tokenFile)
		}
	}
	return o.WithContext(ctx), nil
}

// explain shortens an error of a query, and explains common errors.
func explain(err error) error {
	var refused api.StatusError
	switch {
	case errors.As(err, &refused) && refused.Code == http.StatusForbidden:
		return fmt.Errorf("consul refuses the token (403): %s", strings.TrimSpace(refused.Body))
	case errors.As(err, &refused):
		return fmt.Errorf("consul answers %d: %.200s", refused.Code, strings.TrimSpace(refused.Body))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("consul closed the connection: %w", err)
	}
	return err
}
