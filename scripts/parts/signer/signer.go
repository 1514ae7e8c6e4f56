// Package signer runs a real istiod that signs certificates, for tests. It needs no Kubernetes: the
// package itself issues the tokens with which clients authenticate.
package signer

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// startTime bounds the time until istiod serves.
const startTime = time.Minute

// issuerName is the issuer of the tokens that istiod trusts.
const issuerName = "https://tokens.test"

// Signer is a running istiod that signs certificates.
type Signer struct {
	Root             *pkitest.Authority // root passed to Start
	Address          string             // localhost:PORT with TLS
	PlaintextAddress string             // localhost:PORT without TLS

	folder string
	key    *rsa.PrivateKey // signs the tokens
	ca     parts.IstiodCA
	work   string
	stop   func()
	pid    int
	mu     sync.Mutex
	log    bytes.Buffer
}

// Start starts an istiod that signs with root, and waits until it serves. istiod is killed when the
// test ends.
func Start(t testing.TB, root *pkitest.Authority, environment ...string) *Signer {
	t.Helper()
	s := &Signer{Root: root, folder: t.TempDir(), work: t.TempDir()}
	s.ReplaceAuthority(t, root)
	var err error
	if s.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	keys := httptest.NewServer(http.HandlerFunc(s.keys))
	t.Cleanup(keys.Close)
	s.ca = parts.IstiodCA{Folder: s.folder, JWKS: keys.URL, Issuer: issuerName, Env: environment}
	for i := range s.ca.Ports {
		s.ca.Ports[i] = parts.FreePort(t)
	}
	s.PlaintextAddress = fmt.Sprintf("localhost:%d", s.ca.Ports[0])
	s.Address = fmt.Sprintf("localhost:%d", s.ca.Ports[1])
	s.Restart(t)
	t.Cleanup(func() { s.Stop() })
	return s
}

// Restart starts istiod after a call of Stop, on the same ports, and waits until it serves.
func (s *Signer) Restart(t testing.TB) {
	t.Helper()
	command, err := s.ca.Command(s.work)
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = s, s
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = command.Process.Pid
	s.stop = sync.OnceFunc(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	parts.Eventually(t, startTime, "istiod serves", func() bool {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // probe
		connection, err := dialer.Dial("tcp", s.Address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
}

// Stop kills istiod.
func (s *Signer) Stop() { s.stop() }

// PID returns the process ID of istiod.
func (s *Signer) PID() int { return s.pid }

// Log returns istiod's log.
func (s *Signer) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// Write implements io.Writer for istiod's log.
func (s *Signer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// ReplaceAuthority replaces istiod's signing certificate by that of an authority. istiod publishes
// that authority and more as roots.
func (s *Signer) ReplaceAuthority(t testing.TB, with *pkitest.Authority,
	more ...*pkitest.Authority) {
	t.Helper()
	WriteAuthority(t, s.folder, with, append(more, with)...)
}

// WriteAuthority writes the CA files of an istiod with ROOT_CA_DIR=folder: the key and certificate
// of an authority, and the roots to publish.
func WriteAuthority(t testing.TB, folder string, with *pkitest.Authority,
	announced ...*pkitest.Authority) {
	t.Helper()
	var roots []byte
	for _, a := range announced {
		roots = append(roots, pkitest.PEM(a.Certificate)...)
	}
	for name, text := range map[string][]byte{
		"ca-key.pem":     pkitest.KeyPEM(t, with.Key),
		"ca-cert.pem":    pkitest.PEM(with.Certificate),
		"cert-chain.pem": pkitest.PEM(with.Certificate),
		"root-cert.pem":  roots,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// keys serves the key set that verifies the tokens.
func (s *Signer) keys(w http.ResponseWriter, _ *http.Request) {
	encode := base64.RawURLEncoding.EncodeToString
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": encode(s.key.N.Bytes()),
		"e": encode(big.NewInt(int64(s.key.E)).Bytes()),
	}}})
}

// Token returns a token of service account default/web that istiod accepts.
func (s *Signer) Token(t testing.TB, lifetime time.Duration) string {
	t.Helper()
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(map[string]string{"alg": "RS256", "kid": "1"}) + "." + part(map[string]any{
		"iss": issuerName, "aud": []string{"istio-ca"}, "exp": time.Now().Add(lifetime).Unix(),
		"sub": "system:serviceaccount:default:web",
	})
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// WriteConfigFile writes a YAML file with Istio's objects into istiod's configuration folder.
func (s *Signer) WriteConfigFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.work, "none", name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
