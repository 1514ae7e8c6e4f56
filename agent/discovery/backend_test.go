package discovery_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// connectionKey is the context key of a connection's request counter.
type connectionKey struct{}

// server returns an HTTP server for the backend that counts the requests of each connection.
func (b *backend) server() *http.Server {
	return &http.Server{Handler: b, ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, new(atomic.Int64))
		}}
}

// annotate adds properties of the request and its connection to the request's headers, so that the
// response contains them.
func (b *backend) annotate(r *http.Request) {
	if count, ok := r.Context().Value(connectionKey{}).(*atomic.Int64); ok {
		r.Header.Set("x-connection-request", strconv.FormatInt(count.Add(1), 10))
	}
	if r.TLS != nil {
		r.Header.Set("x-tls-server-name", r.TLS.ServerName)
		for _, certificate := range r.TLS.PeerCertificates {
			r.Header.Add("x-tls-client", certificate.Subject.CommonName)
		}
	}
}

// connectProxy runs an HTTP proxy for tunnels (CONNECT) until the test ends, and returns its port.
func connectProxy(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tunnels sync.WaitGroup
	// cleanups run in reverse order: run's cleanup closes the connections, then Wait returns
	t.Cleanup(tunnels.Wait)
	return run(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		far, err := net.Dial("tcp", r.Host)
		if err != nil || r.Method != http.MethodConnect {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer func() { _ = far.Close() }()
		w.WriteHeader(http.StatusOK)
		near, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = near.Close() }()
		tunnels.Go(func() { _, _ = io.Copy(near, far) })
		_, _ = io.Copy(far, buffered)
	})}, listener)
}

// serveUnix serves the backend on a Unix socket until the test ends, and returns the socket's path.
func (b *backend) serveUnix(t testing.TB) string {
	t.Helper()
	path := filepath.Join(parts.ShortDir(t), "backend.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	run(t, b.server(), listener)
	return path
}

// mute returns a port that accepts connections until the test ends and never answers.
func mute(t testing.TB) int {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	port := serveTCP(t, func(connection net.Conn) {
		defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
		_, _ = io.Copy(io.Discard, connection)
	})
	// cleanups run in reverse order: this closes the connections before serveTCP waits for them
	t.Cleanup(cancel)
	return port
}

// serveTCP calls serve for each accepted connection until the test ends, and closes the connection
// afterwards. It returns the port.
func serveTCP(t testing.TB, serve func(net.Conn)) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				defer func() { _ = connection.Close() }()
				serve(connection)
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); connections.Wait() })
	return listener.Addr().(*net.TCPAddr).Port
}

// full listens until the test ends with a full accept queue, so that no connection succeeds. It
// returns the port.
func full(t testing.TB) int {
	t.Helper()
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(listener) })
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		unix.Listen(listener, 0)); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}
	port := address.(*unix.SockaddrInet4).Port
	waiting, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = waiting.Close() })
	return port
}

// greeter writes its name to each accepted connection until the test ends. It returns the port.
func greeter(t testing.TB, name string) int {
	t.Helper()
	return serveTCP(t, func(connection net.Conn) { _, _ = io.WriteString(connection, name+"\n") })
}
