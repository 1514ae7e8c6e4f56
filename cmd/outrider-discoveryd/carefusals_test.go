package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/identity/pkitest"
)

// TestCA_Refusals sends requests that must be refused, each of which is logged with the reason.
func TestCA_Refusals(t *testing.T) {
	t.Parallel()
	root := pkitest.NewAuthority(t, "root", nil)
	s := startSigning(t, root, root)
	key := pkitest.NewKey(t)
	short, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // the case
	if err != nil {
		t.Fatal(err)
	}
	shown := func(by *pkitest.Authority, change func(*x509.Certificate)) *tls.Certificate {
		template := pkitest.LeafTemplate("web", time.Hour)
		if change != nil {
			change(template)
		}
		chain, key := by.Issue(t, template)
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	good, token := csr(t, key, nil), s.token(s.tokens, nil)
	if err := s.request(good, token, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.request(good, "", shown(root, nil)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, csr, token string
		shown            *tls.Certificate
		code             codes.Code
		reason           string
	}{
		{"another identity", csr(t, key, func(r *x509.CertificateRequest) {
			r.URIs = pkitest.LeafTemplate("other", time.Hour).URIs
		}), token, nil, codes.PermissionDenied, "/sa/other"},
		{"expired token", good, s.token(s.tokens, map[string]any{"exp": time.Now().Unix() - 1}), nil,
			codes.Unauthenticated, "the token has expired"},
		{"token of another key", good, s.token(pkitest.NewKey(t), nil), nil, codes.Unauthenticated,
			"verification fails"},
		{"token of another issuer", good, s.token(s.tokens, map[string]any{"iss": "x"}), nil,
			codes.Unauthenticated, "no issuer"},
		{"token for another audience", good, s.token(s.tokens, map[string]any{"aud": "x"}), nil,
			codes.Unauthenticated, "not for audience"},
		{"no credential", good, "", nil, codes.Unauthenticated, "authentication required"},
		{"foreign certificate", good, token, shown(pkitest.NewAuthority(t, "x", nil), nil),
			codes.Unavailable, "signed by unknown authority"},
		{"expired certificate", good, "", shown(root, func(c *x509.Certificate) {
			c.NotAfter = time.Now().Add(-time.Minute)
		}), codes.Unavailable, "certificate has expired"},
		{"request of 1 MB", strings.Repeat("x", 1<<20), token, nil, codes.InvalidArgument,
			"1048576 bytes"},
		{"no request", "", token, nil, codes.InvalidArgument, "not a certificate request"},
		{"RSA with 1024 bits", csr(t, short, nil), token, nil, codes.InvalidArgument,
			"RSA key has 1024 bits"},
		{"further name", csr(t, key, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.test"}
		}), token, nil, codes.InvalidArgument, "2 names"},
	} {
		err := s.request(c.csr, c.token, c.shown)
		if status.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", c.name, err, c.code)
		}
		s.logs(c.reason)
	}
	plain, err := grpc.NewClient("passthrough:"+s.plaintext,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	if _, err := securityv1.NewIstioCertificateServiceClient(plain).CreateCertificate(
		metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token),
		&securityv1.IstioCertificateRequest{Csr: good}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without TLS: %v", err)
	}
	if log := logOf(s.file); strings.Contains(log, token) {
		t.Error("the log has a token")
	}
	s.secretsAreNowhere(root.Key)
}

// TestCA_ReadsNoRequestOfAnUnknownCaller sends a request without credentials whose body never ends.
// The program refuses it without reading the body.
func TestCA_ReadsNoRequestOfAnUnknownCaller(t *testing.T) {
	t.Parallel()
	root := pkitest.NewAuthority(t, "root", nil)
	s := startSigning(t, root, root)
	client := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots},
		Protocols: &http.Protocols{}}
	client.Protocols.SetHTTP2(true)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body, endless := io.Pipe()
	defer func() { _ = endless.Close() }()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.address+
		securityv1.IstioCertificateService_CreateCertificate_FullMethodName, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	response, err := client.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if code := response.Header.Get("Grpc-Status"); code != "16" {
		t.Errorf("status %q: %v", code, response.Header)
	}
}
