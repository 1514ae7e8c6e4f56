package monitoring

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

const (
	// firstByteTime bounds the wait for the first byte of a connection.
	firstByteTime = 5 * time.Second
	// handshakeRecord is the first byte of a TLS connection. No HTTP request begins with it.
	handshakeRecord = 0x16
)

var errNoTLS = errors.New("there is no server certificate: set [tls] cert_file and key_file")

// splitter is a listener for HTTP and HTTPS: a connection uses TLS if its first byte begins a TLS
// handshake. Accept returns connections whose first byte has arrived, so that a silent client does
// not delay others.
type splitter struct {
	net.Listener
	config *tls.Config

	accepted chan net.Conn
	failed   chan error      // receives the errors of the inner listener
	closed   <-chan struct{} // closed by the function close
	close    context.CancelFunc
}

// newSplitter returns a splitter that accepts connections of inner until Close is called. current
// returns the configuration for each new TLS connection; if it returns nil, the connection is
// refused.
func newSplitter(inner net.Listener, current func() *tls.Config) *splitter {
	ctx, cancel := context.WithCancel(context.Background())
	s := &splitter{Listener: inner, accepted: make(chan net.Conn), failed: make(chan error),
		closed: ctx.Done(), close: cancel}
	s.config = &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			var now *tls.Config
			if current != nil {
				now = current()
			}
			if now == nil {
				return nil, errNoTLS
			}
			now = now.Clone()
			now.NextProtos = []string{"http/1.1"}
			// a resumed session would not be verified with the current roots
			now.SessionTicketsDisabled = true
			return now, nil
		}}
	go s.accept(ctx)
	return s
}

// Accept implements net.Listener. After an error it may be called again, as http.Server does if
// file descriptors are exhausted.
func (s *splitter) Accept() (net.Conn, error) {
	select {
	case c := <-s.accepted:
		return c, nil
	case err := <-s.failed:
		return nil, err
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It closes connections that Accept has not returned yet.
func (s *splitter) Close() error {
	s.close()
	return s.Listener.Close()
}

func (s *splitter) accept(ctx context.Context) {
	for {
		c, err := s.Listener.Accept()
		if err == nil {
			go s.split(ctx, c)
			continue
		}
		select {
		case s.failed <- err: // blocks until Accept is called
		case <-ctx.Done():
			return
		}
	}
}

// split reads the first byte of a connection and then passes the connection to Accept.
func (s *splitter) split(ctx context.Context, c net.Conn) {
	abandon := context.AfterFunc(ctx, func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(firstByteTime))
	first := &begun{Conn: c, first: make([]byte, 1)}
	if _, err := c.Read(first.first); err != nil || c.SetReadDeadline(time.Time{}) != nil {
		abandon()
		_ = c.Close()
		return
	}
	var ready net.Conn = first
	if first.first[0] == handshakeRecord {
		ready = tls.Server(first, s.config)
	}
	select {
	case s.accepted <- ready:
		abandon()
	case <-ctx.Done():
		_ = c.Close()
	}
}

// begun is a connection whose first bytes were already read.
type begun struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

// admitted returns the *admission.Conn inside a connection that a splitter has accepted.
func admitted(c net.Conn) net.Conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if first, ok := c.(*begun); ok {
		return first.Conn
	}
	return c
}
