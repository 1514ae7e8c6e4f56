package monitoring

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/scripts/parts"
)

// serve runs the monitoring server on a listener until the test ends, and returns its URL.
func serve(t *testing.T, bound net.Listener, ready *atomic.Bool) string {
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
	url := serve(t, bound, &ready)
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
	expect("/", "", http.StatusNotFound, "")
}

// TestServe_OtherHosts: clients on other hosts get metrics and readiness, but no debug pages.
func TestServe_OtherHosts(t *testing.T) {
	other := parts.NewOtherHost(t)
	bound, err := net.Listen("tcp", other.Peer+":0")
	if err != nil {
		t.Fatal(err)
	}
	var ready atomic.Bool
	ready.Store(true)
	serve(t, bound, &ready)
	for path, code := range map[string]int{"/metrics": http.StatusOK, "/ready": http.StatusOK,
		"/debug/connections": http.StatusForbidden} {
		var connection net.Conn
		other.Do(t, func() { connection, err = net.Dial("tcp", bound.Addr().String()) })
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
			path, bound.Addr())
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != code {
			t.Errorf("%s: %s", path, response.Status)
		}
		_, _ = response.Body.Close(), connection.Close()
	}
}

// TestServe_BoundsTimeOfBodies sends the header of a request with a body that never arrives.
func TestServe_BoundsTimeOfBodies(t *testing.T) {
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, bound, &atomic.Bool{})
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
