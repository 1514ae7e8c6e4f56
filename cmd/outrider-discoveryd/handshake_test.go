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

// refusing returns a TLS server that trusts no CA for client certificates, and the configuration of
// a client whose certificate it refuses. name is the name of the certificate's CA, which the
// refusal contains.
func refusing(t *testing.T, log *bytes.Buffer, name string) (*serverIdentity, *tls.Config) {
	t.Helper()
	root := pkitest.NewAuthority(t, "root", nil)
	pair, err := tls.X509KeyPair(root.Issue(t, pkitest.LeafTemplate("server", time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	s := &serverIdentity{log: slog.New(slog.NewJSONHandler(log, nil))}
	s.current.Store(&tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs: x509.NewCertPool()})
	issuer, other := pkitest.NewAuthority(t, name, nil), pkitest.NewAuthority(t, name, nil)
	shown, err := tls.X509KeyPair(issuer.Issue(t, pkitest.LeafTemplate("web", time.Hour)))
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

// refuse performs a handshake, in which the server must refuse the client's certificate.
func refuse(t *testing.T, s *serverIdentity, server, client net.Conn, config *tls.Config) {
	t.Helper()
	defer func() { _, _ = server.Close(), client.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c := tls.Client(client, config)
		_ = c.Handshake()
		// in TLS 1.3, the client receives the refusal after its handshake
		_, _ = c.Read(make([]byte, 1))
	}()
	if _, _, err := s.credentials().ServerHandshake(server); err == nil {
		t.Error("the certificate was accepted")
	}
	_ = server.Close()
	<-ended
}

// A refused certificate with a name of 10,000 bytes causes a log line of at most 1,000 bytes.
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

// arriving is a listener that accepts one connection, from a client with the address from.
type arriving struct {
	net.Conn
	from string
}

func (a arriving) Accept() (net.Conn, error) { return a, nil }
func (a arriving) Addr() net.Addr            { return a.RemoteAddr() }
func (a arriving) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.from))
}

// A client that uses many addresses of one IPv6 /64 network causes no more log lines than one
// address.
func TestHandshake_BoundsTheLinesOfANetwork(t *testing.T) {
	var log bytes.Buffer
	s, config := refusing(t, &log, "CA")
	for i := range 2 * handshakeLimits.PerClass {
		near, client := net.Pipe()
		server, err := xds.LimitConnections(arriving{near, fmt.Sprintf("[2001:db8::%d]:1", i+1)}).Accept()
		if err != nil {
			t.Fatal(err)
		}
		refuse(t, s, server, client, config)
	}
	if lines := strings.Count(log.String(), "refused client certificate"); lines !=
		handshakeLimits.PerClass {
		t.Errorf("%d lines", lines)
	}
	if !strings.Contains(log.String(), `"caller":"[2001:db8::3]:1"`) {
		t.Errorf("the address is not named: %s", log.String())
	}
}
