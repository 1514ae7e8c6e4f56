package main

import (
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"outrider.org/outrider/agent/repeat"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
)

// loggedHandshakes are transport credentials that log client certificates that cannot be verified.
// TLS ends their connections before any gRPC service is called.
type loggedHandshakes struct {
	credentials.TransportCredentials
	identity *serverIdentity
}

// credentials returns the transport credentials of a listener.
func (s *serverIdentity) credentials() credentials.TransportCredentials {
	return loggedHandshakes{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.current.Load(), nil
		}}), s}
}

// handshakeLimits bounds the log lines about client certificates for each client: an IPv4 address,
// an IPv6 /64 network or a user of this host.
var handshakeLimits = repeat.Limits{PerClass: 3, PerSubject: 10}

// ServerHandshake implements credentials.TransportCredentials.
func (l loggedHandshakes) ServerHandshake(from net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := l.TransportCredentials.ServerHandshake(from)
	var unverified *tls.CertificateVerificationError
	if !errors.As(err, &unverified) {
		return secure, info, err
	}
	client := xds.PeerOfAddress(from.RemoteAddr())
	reason := auth.ShortenForLog(unverified.Err.Error())
	omitted, ok := l.identity.refusals.Allow(time.Now(), client.ClientKey().String(),
		repeat.ErrorClass(reason), handshakeLimits)
	if ok {
		identity := ""
		if shown := unverified.UnverifiedCertificates[0]; len(shown.URIs) > 0 {
			identity = auth.ShortenForLog(shown.URIs[0].String())
		}
		l.identity.log.Warn("refused client certificate", "caller", client.Address,
			"claimed", identity, "reason", reason, "omitted", omitted)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (l loggedHandshakes) Clone() credentials.TransportCredentials {
	return loggedHandshakes{l.TransportCredentials.Clone(), l.identity}
}
