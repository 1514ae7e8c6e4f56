package envoy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Limits of a request to the admin interface. Envoy answers on its main thread, which is busy
// during a hot restart or with a large configuration, and which a hung parent can block forever.
const (
	adminDialTimeout = time.Second
	// for the whole request, if the context has no deadline
	adminTimeout     = 5 * time.Second
	adminMaxResponse = 256 << 20 // bytes of one answer
)

// Admin is a client of one epoch's admin interface. Each request uses a new connection: a retained
// one could still lead to another epoch. An Admin therefore needs no Close. It is safe for
// concurrent use.
type Admin struct {
	network, address string
	dialer           net.Dialer
	transport        *http.Transport // for RoundTrip
}

// NewAdmin returns a client of the admin interface at the path of a Unix socket ("@" begins an
// abstract one) or at host:port.
func NewAdmin(address string) *Admin {
	network := "tcp"
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "@") {
		network = "unix"
	}
	a := &Admin{network: network, address: address}
	// The time-out is for TCP only: a Unix socket connects or fails at once, and a timer would wake
	// an idle agent.
	if network != "unix" {
		a.dialer.Timeout = adminDialTimeout
	}
	a.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return a.dial(ctx)
		},
		DisableKeepAlives:  true,
		DisableCompression: true,
	}
	return a
}

func (a *Admin) dial(ctx context.Context) (net.Conn, error) {
	return a.dialer.DialContext(ctx, a.network, a.address)
}

// String returns the address for errors and logs.
func (a *Admin) String() string {
	if a.network == "unix" {
		return a.address
	}
	return a.network + "://" + a.address
}

// RoundTrip implements http.RoundTripper. It ignores scheme and host of the request and sets no
// deadline.
func (a *Admin) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.URL.Scheme, request.URL.Host = "http", "envoy"
	return a.transport.RoundTrip(request)
}

// statusError is a response with a status other than 200.
type statusError struct {
	Code int    // HTTP status
	Body string // the beginning of the body
}

// Error implements error.
func (e *statusError) Error() string {
	return fmt.Sprintf("Envoy's admin answers %d %s: %s", e.Code, http.StatusText(e.Code), e.Body)
}

// Get returns the body of a GET. path may include a query.
func (a *Admin) Get(ctx context.Context, path string) ([]byte, error) {
	return a.do(ctx, http.MethodGet, path)
}

// Post sends a POST without a body and returns the body of the answer.
func (a *Admin) Post(ctx context.Context, path string) ([]byte, error) {
	return a.do(ctx, http.MethodPost, path)
}

func (a *Admin) do(ctx context.Context, method, path string) ([]byte, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, adminTimeout)
		defer cancel()
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	body, err := a.send(request)
	if err != nil {
		return nil, fmt.Errorf("%s %s of Envoy's admin at %s: %w", method, path, a, err)
	}
	return body, nil
}

// send performs one HTTP exchange in the calling goroutine. An http.Transport would start
// goroutines for each connection, whose wake-ups would dominate the CPU time of an idle agent.
func (a *Admin) send(request *http.Request) (body []byte, err error) {
	ctx := request.Context()
	defer func() {
		if _, answered := errors.AsType[*statusError](err); err != nil && !answered &&
			ctx.Err() != nil {
			err = ctx.Err()
		}
	}()
	connection, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	request.Close = true
	if err := request.Write(connection); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), request)
	if err != nil {
		return nil, err
	}
	defer func() {
		// first, because Body.Close would read the rest of an oversized response
		_ = connection.Close()
		_ = response.Body.Close()
	}()
	body, err = io.ReadAll(io.LimitReader(response.Body, adminMaxResponse+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > adminMaxResponse:
		return nil, fmt.Errorf("the answer is longer than %d bytes", adminMaxResponse)
	case response.StatusCode != http.StatusOK:
		return nil, &statusError{Code: response.StatusCode, Body: abbreviate(body)}
	}
	return body, nil
}

// Ready reports whether Envoy's state is LIVE. If not, state is the state that Envoy reports
// (PRE_INITIALIZING, INITIALIZING, DRAINING), and err is nil.
func (a *Admin) Ready(ctx context.Context) (ready bool, state string, err error) {
	body, err := a.Get(ctx, "/ready")
	if status, ok := errors.AsType[*statusError](err); ok &&
		status.Code == http.StatusServiceUnavailable {
		return false, status.Body, nil
	}
	if err != nil {
		return false, "", err
	}
	return true, string(bytes.TrimSpace(body)), nil
}
