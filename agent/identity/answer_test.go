package identity_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
)

// faultyCA is a certificate authority that issues a certificate for id and sends roots, regardless
// of the requested identity and of the issuer's root.
type faultyCA struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	t      *testing.T
	issuer *pkitest.Authority
	id     string
	roots  []*x509.Certificate
}

func (f *faultyCA) CreateCertificate(_ context.Context, in *securityv1.IstioCertificateRequest) (
	*securityv1.IstioCertificateResponse, error) {
	block, _ := pem.Decode([]byte(in.Csr))
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	template := pkitest.LeafTemplate("web", time.Hour)
	id, err := url.Parse(f.id)
	if err != nil {
		return nil, err
	}
	template.URIs = []*url.URL{id}
	leaf := f.issuer.Sign(f.t, template, request.PublicKey)
	return &securityv1.IstioCertificateResponse{CertChain: []string{
		string(pkitest.PEM(leaf)), string(pkitest.PEM(f.roots...))}}, nil
}

// An answer of the authority is refused if it certifies another identity than the requested one, or
// if none of its roots issued the certificate.
func TestIstiod_ComparesTheAnswerWithTheRequest(t *testing.T) {
	t.Parallel()
	root, other := pkitest.NewAuthority(t, "root", nil), pkitest.NewAuthority(t, "other", nil)
	const id, another = "spiffe://cluster.local/ns/default/sa/web",
		"spiffe://cluster.local/ns/default/sa/db"
	for name, c := range map[string]struct {
		id    string
		roots []*x509.Certificate
		want  string
	}{
		"as requested":     {id, roots(other, root), ""},
		"another identity": {another, roots(root), "certifies \"" + another + "\", not " + id},
		"another root":     {id, roots(other), "a chain that none of its roots issued"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		securityv1.RegisterIstioCertificateServiceServer(server,
			&faultyCA{t: t, issuer: root, id: c.id, roots: c.roots})
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		i := identity.Istiod{Address: listener.Addr().String(), Plaintext: true, TTL: time.Hour,
			SpiffeID: id, KeyType: pki.ECDSAP256}
		_, err = i.Issue(t.Context(), nil, nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		server.Stop()
		<-done
	}
}
