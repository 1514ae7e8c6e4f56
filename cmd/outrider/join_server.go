package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
)

// dialTime bounds a connection to an address of the server, including the TLS handshake.
const dialTime = 5 * time.Second

// tryServer connects to each address, and requests a certificate with the token. It discards this
// certificate: the agent requests its own.
func (p *joinPlan) tryServer(ctx context.Context) error {
	var reachable []string
	var errs []error
	for _, address := range p.request.addresses {
		err := p.connect(ctx, address)
		switch failed, unreachable := errors.AsType[*unreachableError](err); {
		case unreachable:
			errs = append(errs, failed)
			p.notes = append(p.notes, failed.Error())
		case err != nil:
			return err
		default:
			reachable = append(reachable, address)
		}
	}
	if len(reachable) == 0 {
		return errors.Join(errs...)
	}
	issuer := identity.Istiod{Address: strings.Join(reachable, ", "),
		ServerName: p.request.serverName, RootFile: p.request.roots, TokenFile: p.request.token,
		ClusterID: p.config.Node.ClusterID, SpiffeID: p.spiffeID,
		KeyType: pki.KeyType(p.config.Identity.KeyType), TTL: p.config.Identity.TTL}
	issued, err := issuer.Issue(ctx, nil, nil)
	if err != nil {
		return p.explainRefusal(err)
	}
	now := time.Now()
	if err := issued.Pair.CheckTime(now); err != nil {
		return fmt.Errorf("the server issues certificates that are valid from %s until %s, and the "+
			"clock of this host says %s; set the clock (timedatectl set-ntp true)",
			utc(issued.Pair.Leaf().NotBefore), utc(issued.Pair.NotAfter()), utc(now))
	}
	return nil
}

// explainRefusal adds to a gRPC error of tryServer how to solve the problem.
func (p *joinPlan) explainRefusal(err error) error {
	answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *grpcstatus.Status
	}](err)
	if !ok {
		return err
	}
	switch message := answer.GRPCStatus().Message(); answer.GRPCStatus().Code() {
	case codes.Unauthenticated:
		return fmt.Errorf("%s: the server does not accept the token: %s; get a new one for this server",
			p.request.token, message)
	case codes.PermissionDenied:
		return fmt.Errorf("the server does not certify %s: %s; correct [node] trust_domain, or use "+
			"another token", p.spiffeID, message)
	}
	return err
}

// unreachableError is the error for an address of the server that does not respond.
type unreachableError struct {
	address string
	error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("%s does not answer: %v; check the address, the firewall, and that the server "+
		"runs", e.address, e.error)
}

// connect makes a TLS connection to an address, and verifies the server's certificate.
func (p *joinPlan) connect(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return &unreachableError{address, err}
	}
	defer func() { _ = plain.Close() }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.files[0].text)
	host, _, _ := net.SplitHostPort(address)
	secure := tls.Client(plain, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12,
		ServerName: cmp.Or(p.request.serverName, host), NextProtos: []string{"h2"}})
	return p.explain(address, secure.HandshakeContext(ctx))
}

// explain adds to an error of a TLS handshake how to solve the problem.
func (p *joinPlan) explain(address string, err error) error {
	if err == nil {
		return nil
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("%s: the issuer of the server's certificate, %q, is not among the "+
			"certificates in %s; specify the root certificates of this server with --ca", address,
			unknown.Cert.Issuer.String(), p.request.roots)
	}
	if other, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Errorf("%s: the server's certificate is for %s, not for %s; use one of these as "+
			"ADDRESS, or specify one with --server-name", address,
			strings.Join(names(other.Certificate), ", "), other.Host)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok &&
		invalid.Reason == x509.Expired {
		return fmt.Errorf("%s: the server's certificate is valid from %s until %s, and the clock of "+
			"this host says %s; set the clock (timedatectl set-ntp true), or renew the certificate",
			address, utc(invalid.Cert.NotBefore), utc(invalid.Cert.NotAfter), utc(time.Now()))
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("%s answers without TLS; specify the server's port with TLS (%s)",
			address, meshPort)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &unreachableError{address, err}
	}
	return fmt.Errorf("%s: TLS handshake: %w", address, err)
}

// names returns the DNS names and IP addresses in a certificate.
func names(c *x509.Certificate) []string {
	all := c.DNSNames
	for _, address := range c.IPAddresses {
		all = append(all, address.String())
	}
	if len(all) == 0 {
		return []string{"no name"}
	}
	return all
}
