package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/xds"
)

// refusing returns a server with TLS that accepts client certificates of no CA, and a client's
// configuration with a certificate that the server refuses. The refusal contains the name of the
// certificate's CA.
func refusing(t *testing.T, log *bytes.Buffer, name string) (*serverIdentity, *tls.Config) {
	t.Helper()
	root := pkitest.NewAuthority(t, "root", nil)
	pair, err := tls.X509KeyPair(root.Issue(t, pkitest.Leaf("server", time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	s := &serverIdentity{log: slog.New(slog.NewJSONHandler(log, nil))}
	s.current.Store(&tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs: x509.NewCertPool()})
	issuer, other := pkitest.NewAuthority(t, name, nil), pkitest.NewAuthority(t, name, nil)
	shown, err := tls.X509KeyPair(issuer.Issue(t, pkitest.Leaf("web", time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	shown.Certificate = append(shown.Certificate, other.Certificate.Raw)
	client := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "server.test",
		NextProtos: []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &shown, nil
		}}
	client.RootCAs.AddCert(root.Certificate)
	return s, client
}

// refuse does a handshake that the server refuses.
func refuse(t *testing.T, s *serverIdentity, server, client net.Conn, config *tls.Config) {
	t.Helper()
	defer func() { _, _ = server.Close(), client.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c := tls.Client(client, config)
		_ = c.Handshake()
		_, _ = c.Read(make([]byte, 1)) // the server's alert
	}()
	if _, _, err := s.credentials().ServerHandshake(server); err == nil {
		t.Error("the certificate was accepted")
	}
	_ = server.Close()
	<-ended
}

// A certificate whose refusal contains names of it makes no long line in the log.
func TestHandshake_BoundsWhatACertificateSays(t *testing.T) {
	var log bytes.Buffer
	name := strings.Repeat("x", 10_000)
	s, config := refusing(t, &log, name)
	server, client := net.Pipe()
	refuse(t, s, server, client, config)
	if !strings.Contains(log.String(), name[:50]) || log.Len() > 1000 {
		t.Errorf("a line of %d bytes: %.1000s", log.Len(), log.String())
	}
}

// arriving is a listener that accepts one connection, whose client has an address.
type arriving struct {
	net.Conn
	from string
}

func (a arriving) Accept() (net.Conn, error) { return a, nil }
func (a arriving) Addr() net.Addr            { return a.RemoteAddr() }
func (a arriving) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.from))
}

// A host that uses the addresses of its IPv6 network makes no more lines than one address.
func TestHandshake_BoundsTheLinesOfANetwork(t *testing.T) {
	var log bytes.Buffer
	s, config := refusing(t, &log, "CA")
	for i := range 2 * handshakeLimits.Class {
		near, client := net.Pipe()
		server, err := xds.LimitTCP(arriving{near, fmt.Sprintf("[2001:db8::%d]:1", i+1)}).Accept()
		if err != nil {
			t.Fatal(err)
		}
		refuse(t, s, server, client, config)
	}
	if lines := strings.Count(log.String(), "refused client certificate"); lines !=
		handshakeLimits.Class {
		t.Errorf("%d lines", lines)
	}
	if !strings.Contains(log.String(), `"caller":"[2001:db8::3]:1"`) {
		t.Errorf("the address is not named: %s", log.String())
	}
}
