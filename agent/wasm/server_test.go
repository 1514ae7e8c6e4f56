package wasm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/wasm/wasmtest"
)

// pipes is a listener in memory, as a network does not obey the clock of a synctest bubble.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p pipes) Close() error {
	close(p.closed)
	return nil
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.accepted <- server
	return client, nil
}

// endless writes chunks until the client closes the connection.
func endless(w http.ResponseWriter, q *http.Request, pause time.Duration, chunk []byte) {
	for err := error(nil); err == nil && q.Context().Err() == nil; {
		_, err = w.Write(chunk)
		_ = http.NewResponseController(w).Flush() // the next Write has the error, if any
		select {
		case <-q.Context().Done():
		case <-time.After(pause):
		}
	}
}

// TestFetcher_SlowServers: a fetch from a server that does not answer, or answers too slowly, fails
// after the timeout of one attempt. An endless response is cut off at the size limit.
func TestFetcher_SlowServers(t *testing.T) {
	const late = "no module received within 30s"
	for name, c := range map[string]struct {
		from, err string
		handler   http.HandlerFunc
	}{
		"silent":     {"http://127.0.0.1/m?sig=secret", late, silent},
		"slow":       {"http://user:secret@127.0.0.1/m", late, slow},
		"image":      {"oci://127.0.0.1/p/m:v1", late, silent},
		"slow image": {"oci://127.0.0.1/p/m:v1", late, slow},
		"endless": {"http://127.0.0.1/m", "has more than 64 MB", func(w http.ResponseWriter, q *http.Request) {
			endless(w, q, 0, make([]byte, 1<<20))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := pipes{make(chan net.Conn), make(chan struct{})}
				server := &http.Server{Handler: c.handler, ReadHeaderTimeout: time.Hour}
				go func() { _ = server.Serve(listener) }() // returns after Close
				defer func() { _ = server.Close() }()
				before := http.DefaultClient.Transport
				defer func() { http.DefaultClient.Transport = before }()
				http.DefaultClient.Transport = &http.Transport{DialContext: listener.dial,
					DisableKeepAlives: true}
				f := NewFetcher(FetcherOptions{AllowsLocalAddress: local.AllowsLocalAddress})
				started := time.Now()
				got := f.fetch(t.Context(), Source{URL: c.from})
				if got.err == nil || !strings.Contains(got.err.Error(), c.err) ||
					strings.Contains(got.err.Error(), "secret") {
					t.Errorf("got %v, want %s", got.err, c.err)
				}
				if took := time.Since(started); took > fetchTime {
					t.Errorf("it took %v", took)
				}
				_ = server.Close()
				synctest.Wait()
			})
		})
	}
}

func silent(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }

func slow(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", wasmtest.OCIManifest)
	w.Header().Set("Content-Length", "1000")
	endless(w, q, time.Second, []byte("\x00"))
}

// TestImage_HostileRegistries: fetching an image fails if the registry sends more data, less data
// or other data than its manifest and headers announce.
func TestImage_HostileRegistries(t *testing.T) {
	zeros := make([]byte, 1<<20)
	forever := func(w http.ResponseWriter, q *http.Request) { endless(w, q, 0, zeros) }
	for name, c := range map[string]struct {
		at      string // handler answers the requests whose paths contain this
		handler http.HandlerFunc
		err     string
	}{
		"endless manifest": {"/manifests/", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", wasmtest.OCIManifest)
			forever(w, q)
		}, "unknown response Content-Length"},
		"huge manifest": {"/manifests/", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", wasmtest.OCIManifest)
			w.Header().Set("Content-Length", "1000000000")
			forever(w, q)
		}, "it has more than 4 MB"},
		"endless module": {"/blobs/", forever, "trailing data"},
		"other module": {"/blobs/", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", len(wasmtest.EmptyModule)))
		}, "mismatch"},
		"half a module": {"/blobs/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(wasmtest.EmptyModule)))
			_, _ = io.WriteString(w, wasmtest.EmptyModule[:20])
		}, "EOF"},
		"endless error": {"/blobs/", func(w http.ResponseWriter, q *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			forever(w, q)
		}, "500"},
		"endless token": {"/", func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/token" {
				_, _ = io.WriteString(w, `{"token": "`)
				endless(w, q, 0, bytes.Repeat([]byte("x"), 1<<20))
				return
			}
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(
				`Bearer realm="http://%s/token",service="test"`, q.Host))
			w.WriteHeader(http.StatusUnauthorized)
		}, "failed to decode response"},
	} {
		t.Run(name, func(t *testing.T) {
			i := wasmtest.NewRegistry(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if strings.Contains(q.URL.Path, c.at) {
						c.handler(w, q)
						return
					}
					next.ServeHTTP(w, q)
				})
			})
			i.Push("p/m:v1", wasmtest.OCIManifest, layer(moduleTypes[0], wasmtest.EmptyModule))
			found, err := local.Fetch(t.Context(), "oci://"+i.Host+"/p/m:v1", "")
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%d bytes, %v; want %s", len(found.Code), err, c.err)
			}
		})
	}
}
