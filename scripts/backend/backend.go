// Package backend is a small server behind Envoy for examples, tests and benchmarks. It serves
// plaintext HTTP/1.1 and HTTP/2 on one port, and echoes on a TCP port. Responses contain the name
// of the backend.
//
//	/                 backend and request line, as text
//	/headers          the same, and the request's headers
//	/echo             the request's body
//	/sleep/1.5s       like /, after this time
//	/status/503       like /, with this status
//
// /sleep/D and /status/N may be combined: /sleep/100ms/status/503. Each response has the header
// x-backend.
package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config configures a Backend. An address is host:port; with port 0, the kernel selects a free
// port.
type Config struct {
	Name string // name in the responses
	HTTP string // address of HTTP; "": no HTTP
	TCP  string // address of the TCP echo server; "": none
}

// Backend is a running server.
type Backend struct {
	name   string
	server *http.Server
	http   net.Listener
	echo   net.Listener

	serving sync.WaitGroup
	mu      sync.Mutex
	conns   map[net.Conn]struct{} // connections of the echo; nil after Close
}

// Start listens on the addresses and serves until Close.
func Start(config Config) (*Backend, error) {
	b := &Backend{name: config.Name, conns: map[net.Conn]struct{}{}}
	var err error
	if config.HTTP != "" {
		if b.http, err = net.Listen("tcp", config.HTTP); err != nil {
			return nil, fmt.Errorf("backend %s: %w", config.Name, err)
		}
		protocols := &http.Protocols{}
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		b.server = &http.Server{Handler: b, Protocols: protocols, ReadHeaderTimeout: time.Minute}
		b.serving.Go(func() { _ = b.server.Serve(b.http) }) // returns after Close
	}
	if config.TCP != "" {
		if b.echo, err = net.Listen("tcp", config.TCP); err != nil {
			b.Close()
			return nil, fmt.Errorf("backend %s: %w", config.Name, err)
		}
		b.serving.Go(b.accept)
	}
	return b, nil
}

// HTTPAddress returns the host:port on which HTTP is served.
func (b *Backend) HTTPAddress() string { return b.http.Addr().String() }

// TCPAddress returns the host:port on which the echo is served.
func (b *Backend) TCPAddress() string { return b.echo.Addr().String() }

// Close closes all connections and waits until all goroutines of the Backend have ended.
func (b *Backend) Close() {
	if b.server != nil {
		_ = b.server.Close() // closes the HTTP connections as well
	}
	if b.echo != nil {
		_ = b.echo.Close() // ends accept
	}
	b.mu.Lock()
	for conn := range b.conns {
		_ = conn.Close() // ends the goroutine that echoes
	}
	b.conns = nil
	b.mu.Unlock()
	b.serving.Wait()
}

// ServeHTTP implements http.Handler for the paths that the package comment lists.
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("x-backend", b.name)
	status := http.StatusOK
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for i := 0; i+1 < len(parts); i += 2 {
		var err error
		switch parts[i] {
		case "sleep":
			err = sleep(r.Context(), parts[i+1])
		case "status":
			if status, err = strconv.Atoi(parts[i+1]); err == nil &&
				(status < 200 || status > 599) {
				err = errors.New("the requested HTTP status is not between 200 and 599")
			}
		}
		if err != nil {
			http.Error(w, fmt.Sprintf("%s: %v", b.name, err), http.StatusBadRequest)
			return
		}
	}
	if parts[0] == "echo" {
		w.WriteHeader(status)
		_, _ = io.Copy(w, r.Body) // either side may close the connection
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	text := fmt.Sprintf("%s answers %s %s %s for %s\n", b.name, r.Proto, r.Method,
		r.URL.RequestURI(), r.Host)
	if parts[0] == "headers" {
		var lines []string
		for name, values := range r.Header {
			lines = append(lines, fmt.Sprintf("%s: %s\n", strings.ToLower(name),
				strings.Join(values, ", ")))
		}
		slices.Sort(lines)
		text += strings.Join(lines, "")
	}
	_, _ = io.WriteString(w, text) // the client may have disconnected
}

func sleep(ctx context.Context, text string) error {
	duration, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done(): // the client has disconnected
	}
	return nil
}

// accept serves the echo until its listener is closed.
func (b *Backend) accept() {
	for {
		conn, err := b.echo.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		if b.conns == nil {
			b.mu.Unlock()
			_ = conn.Close() // Close was called before this connection was recorded
			return
		}
		b.conns[conn] = struct{}{}
		b.mu.Unlock()
		b.serving.Go(func() {
			_, _ = io.Copy(conn, conn) // returns when either end closes the connection
			_ = conn.Close()
			b.mu.Lock()
			delete(b.conns, conn)
			b.mu.Unlock()
		})
	}
}
