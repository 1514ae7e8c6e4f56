package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// signing is a running outrider-discoveryd with a certificate authority ([ca]), and the key of a
// token issuer that it trusts.
type signing struct {
	t          *testing.T
	folder     string
	address    string // gRPC address with TLS
	plaintext  string
	file       string
	monitoring int
	pid        int
	tokens     *ecdsa.PrivateKey
	server     *pkitest.Authority // CA that issued the server's certificate
	roots      *x509.CertPool
}

const ownID = "spiffe://cluster.local/ns/default/sa/web"

// startSigning starts the program with [ca], and with a limit of 10,000 connects per second, which
// the tests do not reach.
func startSigning(t *testing.T, with *pkitest.Authority, roots ...*pkitest.Authority) *signing {
	t.Helper()
	return startLimited(t, 10_000, with, roots...)
}

// startLimited starts the program with [ca] and max_connects_per_second; 0: the program's default.
func startLimited(t *testing.T, connects int, with *pkitest.Authority,
	roots ...*pkitest.Authority) *signing {
	t.Helper()
	s := &signing{t: t, folder: parts.ShortDir(t), tokens: pkitest.NewKey(t),
		server: pkitest.NewAuthority(t, "server", nil), roots: x509.NewCertPool()}
	s.roots.AddCert(s.server.Certificate)
	template := pkitest.LeafTemplate("server", time.Hour)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	chain, key := s.server.Issue(t, template)
	s.put("cert", chain)
	s.put("key", key)
	s.verifyTokens(s.tokens)
	s.sign(with, roots...)
	if err := os.Mkdir(filepath.Join(s.folder, "mesh"), 0o700); err != nil {
		t.Fatal(err)
	}
	port, monitoring := parts.FreePort(t), parts.FreePort(t)
	s.monitoring = monitoring
	plain := parts.FreePort(t)
	s.plaintext = fmt.Sprintf("127.0.0.1:%d", plain)
	s.address, s.file = fmt.Sprintf("127.0.0.1:%d", port), filepath.Join(s.folder, "discoveryd.toml")
	write(t, s.file, fmt.Sprintf(`[paths]
state_dir = "state"
[listen]
plaintext = "127.0.0.1:%d"
tls = %q
monitoring = "127.0.0.1:%d"
max_connects_per_second = %d
[tls]
cert_file = "cert"
key_file = "key"
[auth]
jwt_issuers = [{ issuer = "https://tokens.test", audience = "istio-ca", jwks_file = "jwks" }]
join_key_file = "join.pub"
[ca]
enabled = true
cert_file = "ca.pem"
key_file = "ca.key"
root_file = "roots.pem"
max_ttl = "1h"
[[source]]
paths = ["mesh"]
`, plain, s.address, monitoring, connects))
	program, _ := start(t, s.file, monitoring)
	s.pid = program.Process.Pid
	return s
}

func (s *signing) put(name string, text []byte) {
	s.t.Helper()
	path := filepath.Join(s.folder, name)
	write(s.t, path+".next", string(text))
	if err := os.Rename(path+".next", path); err != nil {
		s.t.Fatal(err)
	}
}

// verifyTokens replaces the key set of the token issuer, so that the program accepts exactly the
// tokens that by has signed.
func (s *signing) verifyTokens(by crypto.Signer) {
	s.t.Helper()
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: by.Public()}}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.put("jwks", keys)
}

// sign writes the certificate and the key of the CA, and the trusted roots, to the files of [ca].
func (s *signing) sign(with *pkitest.Authority, roots ...*pkitest.Authority) {
	s.t.Helper()
	var bundle []byte
	for _, root := range roots {
		bundle = append(bundle, pkitest.PEM(root.Certificate)...)
	}
	s.put("roots.pem", bundle)
	s.put("ca.key", pkitest.KeyPEM(s.t, with.Key))
	s.put("ca.pem", pkitest.PEM(with.Certificate))
}

// token returns a token for service account default/web that by has signed. replaced overrides some
// of its claims.
func (s *signing) token(by crypto.Signer, replaced map[string]any) string {
	s.t.Helper()
	claims := map[string]any{"iss": "https://tokens.test", "aud": "istio-ca",
		"sub": "system:serviceaccount:default:web", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range replaced {
		claims[name] = value
	}
	text, err := json.Marshal(claims)
	if err != nil {
		s.t.Fatal(err)
	}
	algorithm := jose.ES256
	if _, ok := by.(*rsa.PrivateKey); ok {
		algorithm = jose.RS256
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: by}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		s.t.Fatal(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		s.t.Fatal(err)
	}
	return compact
}

// agent returns the client with which an agent requests certificates, configured for this program.
func (s *signing) agent() identity.Istiod {
	s.put("token", []byte(s.token(s.tokens, nil)))
	s.put("server.pem", pkitest.PEM(s.server.Certificate))
	return identity.Istiod{Address: s.address, RootFile: filepath.Join(s.folder, "server.pem"),
		TokenFile: filepath.Join(s.folder, "token"), SpiffeID: ownID, TTL: 24 * time.Hour}
}

// request sends a certificate signing request, authenticated by a token or by the certificate
// shown.
func (s *signing) request(csr, token string, shown *tls.Certificate) error {
	config := &tls.Config{RootCAs: s.roots}
	if shown != nil {
		// Without this callback, Go presents no certificate whose CA the server does not name.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return shown, nil
		}
	}
	connection, err := grpc.NewClient("passthrough:"+s.address,
		grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	_, err = securityv1.NewIstioCertificateServiceClient(connection).CreateCertificate(ctx,
		&securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: 3600})
	return err
}

// csr returns a certificate signing request. change edits its template; nil: no edit.
func csr(t *testing.T, key any, change func(*x509.CertificateRequest)) string {
	t.Helper()
	template := &x509.CertificateRequest{URIs: pkitest.LeafTemplate("web", time.Hour).URIs}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// An intermediate CA issues the agent's certificates. The agent authenticates with a token for the
// first one, and with the first one for the second. The private key of the CA is neither in the
// log, nor in the state directory, nor in the debug pages.
func TestCA_AgentIsIssuedCertificates(t *testing.T) {
	t.Parallel()
	root := pkitest.NewAuthority(t, "root", nil)
	middle := pkitest.NewAuthority(t, "middle", root)
	s := startSigning(t, middle, root)
	agent := s.agent()
	first, err := agent.Issue(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := first.Pair.Leaf()
	if left := time.Until(leaf.NotAfter); left > time.Hour || left < 50*time.Minute ||
		len(leaf.DNSNames) > 0 || leaf.IsCA || len(first.Pair.Chain) != 2 {
		t.Errorf("valid for %v, names %v, CA %v, chain of %d", left, leaf.DNSNames, leaf.IsCA,
			len(first.Pair.Chain))
	}
	agent.UseWorkloadCertificate, agent.TokenFile = true, ""
	second, err := agent.Issue(t.Context(), nil, first.Pair)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"serial":"` + leaf.SerialNumber.Text(16) + `","identity":"` + ownID,
		`"credential":"token"`, `"serial":"` + second.Pair.Leaf().SerialNumber.Text(16),
		`"credential":"certificate ` + leaf.SerialNumber.Text(16) + `"`} {
		s.logs(want)
	}
	s.secretsAreNowhere(middle.Key)
}

// logs waits until the program has logged a text.
func (s *signing) logs(text string) {
	s.t.Helper()
	parts.EventuallyWithObservation(s.t, time.Minute, "logged "+text, func() (bool, string) {
		log := logOf(s.file)
		return strings.Contains(log, text), log
	})
}

// secretsAreNowhere checks that neither a debug page nor a file other than ca.key contains the CA's
// private key.
func (s *signing) secretsAreNowhere(key any) {
	s.t.Helper()
	block, _ := pem.Decode(pkitest.KeyPEM(s.t, key))
	scalar, err := key.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		s.t.Fatal(err)
	}
	// a line in the middle of the key's PEM text
	line := base64.StdEncoding.EncodeToString(block.Bytes)[64:128]
	check := func(where, text string) {
		for _, secret := range []string{string(scalar), string(block.Bytes), line,
			hex.EncodeToString(scalar)} {
			if strings.Contains(text, secret) {
				s.t.Errorf("%s has the key", where)
			}
		}
	}
	for _, page := range []string{"/debug/config", "/debug/connections", "/metrics"} {
		code, text := ask("GET", fmt.Sprintf("http://127.0.0.1:%d%s", s.monitoring, page), "", "")
		if code != http.StatusOK {
			s.t.Errorf("%s: %d %s", page, code, text)
		}
		check(page, text)
	}
	err = filepath.WalkDir(s.folder, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() == "ca.key" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		check(path, string(text))
		return nil
	})
	if err != nil {
		s.t.Error(err)
	}
}
