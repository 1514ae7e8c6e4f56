package monitoring

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// serve runs the monitoring server on a listener until the test ends, and returns its URL. secure
// is the TLS configuration; nil: none. On other hosts, only service account "operator" may read the
// pages.
func serve(t *testing.T, bound net.Listener, ready *atomic.Bool, secure *tls.Config) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pilot_xds"},
		func() float64 { return 7 }))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, bound, Options{Metrics: registry, Logger: slog.New(slog.DiscardHandler),
			Ready: func() error {
				if ready.Load() {
					return nil
				}
				return errors.New("waiting for source files")
			},
			TLS: func() *tls.Config { return secure }, Authorize: func(c *x509.Certificate) error {
				if !strings.HasSuffix(c.URIs[0].Path, "/operator") {
					return status.Error(codes.PermissionDenied, "not you")
				}
				return nil
			},
			RegisterPages: func(routes *http.ServeMux, guard func(http.Handler) http.Handler) {
				routes.Handle("GET /{$}", guard(http.HandlerFunc(
					func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })))
			},
			Debug: func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.URL.Path) }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + bound.Addr().String()
}

func get(t *testing.T, url, host string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		request.Host = host
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestServe(t *testing.T) {
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var ready atomic.Bool
	url := serve(t, bound, &ready, nil)
	defer http.DefaultClient.CloseIdleConnections()
	expect := func(path, host string, code int, says string) {
		t.Helper()
		if got, text := get(t, url+path, host); got != code || !strings.Contains(text, says) {
			t.Errorf("%s: %d %s", path, got, text)
		}
	}
	expect("/ready", "", http.StatusServiceUnavailable, "waiting for source files")
	ready.Store(true)
	expect("/ready", "", http.StatusOK, "")
	expect("/metrics", "", http.StatusOK, "pilot_xds 7")
	expect("/debug/syncz", "", http.StatusOK, "/debug/syncz")
	expect("/debug/syncz", "evil.test", http.StatusForbidden, "web pages")
	expect("/metrics", "discoveryd.test:15014", http.StatusOK, "pilot_xds 7")
	expect("/", "", http.StatusOK, "page")
	expect("/", "evil.test", http.StatusForbidden, "web pages")
	expect("/none", "", http.StatusNotFound, "")
}

// Requests that pages of other web sites cause are refused, but users may follow links on such
// pages.
func TestServe_RefusesOtherSites(t *testing.T) {
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, bound, &atomic.Bool{}, nil)
	defer http.DefaultClient.CloseIdleConnections()
	for name, c := range map[string]struct {
		header map[string]string
		code   int
	}{
		"own":   {map[string]string{"Sec-Fetch-Site": "same-origin"}, http.StatusOK},
		"typed": {map[string]string{"Sec-Fetch-Site": "none"}, http.StatusOK},
		"a link": {map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
			http.StatusOK},
		"a script": {map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
			http.StatusForbidden},
		"other port": {map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
			http.StatusForbidden},
		"origin": {map[string]string{"Origin": "http://evil.test"}, http.StatusForbidden},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/debug/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range c.header {
			request.Header.Set(key, value)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != c.code {
			t.Errorf("%s: %s", name, response.Status)
		}
		_ = response.Body.Close()
	}
}

// TestServe_OtherHosts checks what clients on other hosts may read: metrics and readiness with or
// without TLS, and everything else only over TLS with the certificate of an operator.
func TestServe_OtherHosts(t *testing.T) {
	other := parts.NewOtherHost(t)
	bound, err := net.Listen("tcp", other.Peer+":0")
	if err != nil {
		t.Fatal(err)
	}
	authority := pkitest.NewAuthority(t, "root", nil)
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate)
	pair := func(name string) *tls.Certificate {
		p, err := tls.X509KeyPair(authority.Issue(t, pkitest.LeafTemplate(name, time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		return &p
	}
	secure := &tls.Config{Certificates: []tls.Certificate{*pair("server")}, ClientCAs: roots,
		ClientAuth: tls.VerifyClientCertIfGiven, NextProtos: []string{"h2"}}
	var ready atomic.Bool
	ready.Store(true)
	serve(t, bound, &ready, secure)
	operator, web := pair("operator"), pair("web")
	for name, c := range map[string]struct {
		path  string
		tls   bool
		shown *tls.Certificate
		code  int
	}{
		"metrics":             {"/metrics", false, nil, http.StatusOK},
		"ready":               {"/ready", false, nil, http.StatusOK},
		"metrics over TLS":    {"/metrics", true, nil, http.StatusOK},
		"debug":               {"/debug/connections", false, nil, http.StatusForbidden},
		"debug over TLS":      {"/debug/connections", true, nil, http.StatusForbidden},
		"debug as a workload": {"/debug/connections", true, web, http.StatusForbidden},
		"debug as operator":   {"/debug/connections", true, operator, http.StatusOK},
		"page":                {"/", false, nil, http.StatusForbidden},
		"page as a workload":  {"/", true, web, http.StatusForbidden},
		"page as operator":    {"/", true, operator, http.StatusOK},
	} {
		var connection net.Conn
		other.RunOn(t, func() { connection, err = net.Dial("tcp", bound.Addr().String()) })
		if err != nil {
			t.Fatal(err)
		}
		if c.tls {
			config := &tls.Config{RootCAs: roots, ServerName: "server.test"}
			if c.shown != nil {
				config.Certificates = []tls.Certificate{*c.shown}
			}
			connection = tls.Client(connection, config)
		}
		_, _ = fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: discoveryd.test\r\n"+
			"Connection: close\r\n\r\n", c.path)
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if response.StatusCode != c.code {
			t.Errorf("%s: %s", name, response.Status)
		}
		_, _ = response.Body.Close(), connection.Close()
	}
}

// Other clients are served while a connection sends nothing, and after a TLS handshake that failed
// because there is no server certificate.
func TestServe_SilentConnections(t *testing.T) {
	t.Parallel()
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, bound, &atomic.Bool{}, nil)
	defer http.DefaultClient.CloseIdleConnections()
	silent, err := net.Dial("tcp", bound.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	//nolint:gosec // the handshake is to fail
	if c, err := tls.Dial("tcp", bound.Addr().String(), &tls.Config{InsecureSkipVerify: true}); err == nil {
		_ = c.Close()
		t.Error("a handshake without a server certificate")
	}
	if code, text := get(t, url+"/metrics", ""); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	_ = silent.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the silent connection: %v", err)
	}
}

// exhausted is a listener whose Accept fails several times, as if there were no file descriptors
// left.
type exhausted struct {
	net.Listener
	failures int
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.failures > 0 {
		e.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return e.Listener.Accept()
}

// After Accept has failed for lack of file descriptors, the server accepts connections again.
func TestServe_OutOfFileDescriptors(t *testing.T) {
	t.Parallel()
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, &exhausted{bound, 3}, &atomic.Bool{}, nil)
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

// TestServe_BoundsTimeOfBodies sends the header of a request and no body. The server must close the
// connection.
func TestServe_BoundsTimeOfBodies(t *testing.T) {
	t.Parallel()
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, bound, &atomic.Bool{}, nil)
	connection, err := net.Dial("tcp", bound.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	_, _ = io.WriteString(connection, "GET /ready HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
	_ = connection.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, connection); err != nil {
		t.Errorf("the connection is still open: %v", err)
	}
}
