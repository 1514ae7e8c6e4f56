package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
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
