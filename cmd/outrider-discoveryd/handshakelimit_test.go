package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// serveHandshakes accepts connections, with limited handshakes, until the test ends. It sends the
// result of each handshake to results.
func serveHandshakes(t *testing.T, limit int, timeout time.Duration) (address string,
	client *tls.Config, of *handshakes, results <-chan error) {
	t.Helper()
	root := pkitest.NewAuthority(t, "root", nil)
	pair, err := tls.X509KeyPair(root.Issue(t, pkitest.LeafTemplate("web", time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	client = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "web.test",
		NextProtos: []string{"h2"}}
	client.RootCAs.AddCert(root.Certificate)
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := xds.LimitConnections(bound)
	t.Cleanup(func() { _ = listener.Close() })
	limited := limitHandshakes(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}}),
		limit, timeout)
	all := make(chan error, 100)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			go func() {
				_, _, err := limited.ServerHandshake(c)
				all <- err
			}()
		}
	}()
	return bound.Addr().String(), client, limited, all
}

// dialAs opens a connection as the user with the given UID.
func dialAs(t *testing.T, user int, address string) (c net.Conn) {
	t.Helper()
	var err error
	parts.RunAs(t, user, func() { c, err = net.Dial("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Silent connections of one local user (UID) use up the handshakes that this user may have at once.
// Connections of other users are not delayed.
func TestHandshakes_SilentConnectionsDelayOnlyTheirOwn(t *testing.T) {
	address, config, limited, results := serveHandshakes(t, 2, time.Hour)
	silent := []net.Conn{dialAs(t, 0, address), dialAs(t, 0, address)}
	parts.Eventually(t, time.Minute, "the handshakes of the first two begin", func() bool {
		limited.mu.Lock()
		defer limited.mu.Unlock()
		of := limited.turns[admission.KeyOfUser(0)]
		return of != nil && len(of.slots) == 2
	})
	own := make(chan error, 1)
	third := tls.Client(dialAs(t, 0, address), config)
	go func() { own <- third.Handshake() }()
	if err := tls.Client(dialAs(t, parts.NobodyUID, address), config).Handshake(); err != nil {
		t.Errorf("another user: %v", err)
	}
	if err := <-results; err != nil {
		t.Errorf("another user: %v", err)
	}
	select {
	case err := <-own:
		t.Errorf("a third handshake of two: %v", err)
	default:
	}
	_ = silent[0].Close()
	if err := <-results; err == nil {
		t.Error("a handshake without client")
	}
	if err := <-own; err != nil {
		t.Errorf("after one of the others: %v", err)
	}
}

// A handshake with a silent client times out, and so does the wait of further handshakes.
func TestHandshakes_End(t *testing.T) {
	address, _, _, results := serveHandshakes(t, 1, 100*time.Millisecond)
	for range 3 {
		dialAs(t, 0, address)
	}
	for range 3 {
		if err := <-results; !errors.Is(err, errHandshakes) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
}
