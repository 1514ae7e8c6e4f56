package identity_test

import (
	"bytes"
	"context"
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
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

const issuerName = "https://tokens.test"

// authority is a real istiod that signs, and an issuer of tokens that it trusts.
type authority struct {
	t       *testing.T
	root    *pkitest.Authority
	address string // TLS
	plain   string
	folder  string
	key     *rsa.PrivateKey // of the tokens
	mu      sync.Mutex
	log     bytes.Buffer
	stop    func()
}

// Write implements io.Writer for istiod's log.
func (a *authority) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.Write(p)
}

func startAuthority(t *testing.T, root *pkitest.Authority, environment ...string) *authority {
	t.Helper()
	a := &authority{t: t, root: root, folder: t.TempDir()}
	a.sign(root)
	var err error
	if a.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	keys := httptest.NewServer(http.HandlerFunc(a.keys))
	t.Cleanup(keys.Close)
	ca := parts.IstiodCA{Folder: a.folder, JWKS: keys.URL, Issuer: issuerName, Env: environment}
	for i := range ca.Ports {
		ca.Ports[i] = parts.FreePort(t)
	}
	a.plain = fmt.Sprintf("localhost:%d", ca.Ports[0])
	a.address = fmt.Sprintf("localhost:%d", ca.Ports[1])
	command, err := ca.Command(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = a, a
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	a.stop = sync.OnceFunc(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	t.Cleanup(a.stop)
	for end := time.Now().Add(deadline); ; {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		connection, err := dialer.DialContext(t.Context(), "tcp", a.address)
		if err == nil {
			_ = connection.Close()
			return a
		}
		if time.Now().After(end) {
			t.Fatalf("istiod does not serve: %v\n%s", err, a.log.String())
		}
		time.Sleep(50 * time.Millisecond) // a process of others tells nobody when it listens
	}
}

// sign writes what istiod signs with.
func (a *authority) sign(with *pkitest.Authority, more ...*pkitest.Authority) {
	a.t.Helper()
	for name, text := range map[string][]byte{
		"ca-key.pem":     pkitest.KeyPEM(a.t, with.Key),
		"ca-cert.pem":    pkitest.PEM(with.Certificate),
		"cert-chain.pem": pkitest.PEM(with.Certificate),
		"root-cert.pem":  pkitest.PEM(roots(append(more, with)...)...),
	} {
		if err := os.WriteFile(filepath.Join(a.folder, name), text, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// keys serves the JSON Web Key Set.
func (a *authority) keys(w http.ResponseWriter, _ *http.Request) {
	encode := base64.RawURLEncoding.EncodeToString
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": encode(a.key.N.Bytes()),
		"e": encode(big.NewInt(int64(a.key.E)).Bytes()),
	}}})
}

// token returns a token of service account web.
func (a *authority) token(lifetime time.Duration) string {
	a.t.Helper()
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			a.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(map[string]string{"alg": "RS256", "kid": "1"}) + "." + part(map[string]any{
		"iss": issuerName, "aud": []string{"istio-ca"}, "exp": time.Now().Add(lifetime).Unix(),
		"sub": "system:serviceaccount:default:web",
	})
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.key, crypto.SHA256, sum[:])
	if err != nil {
		a.t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// client returns a client of the authority with a token of the given lifetime.
func (a *authority) client(dir string, lifetime time.Duration) *identity.Istiod {
	a.t.Helper()
	i := &identity.Istiod{
		Address: a.address, RootFile: filepath.Join(dir, "root.pem"), ClusterID: "vms",
		TokenFile: filepath.Join(dir, "token"), TTL: time.Hour,
		SpiffeID: pki.SpiffeID("cluster.local", "default", "web"),
	}
	writeFile(a.t, i.RootFile, pkitest.PEM(a.root.Certificate))
	writeFile(a.t, i.TokenFile, []byte(a.token(lifetime)+"\n"))
	return i
}

func writeFile(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path+".next", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

func TestIstiod_Issues(t *testing.T) {
	t.Parallel()
	root := pkitest.NewAuthority(t, "root", nil)
	a := startAuthority(t, root)
	issue := func(i *identity.Istiod) (*identity.Issued, error) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		return i.Issue(ctx)
	}
	for _, kind := range []pki.KeyType{pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048} {
		i := a.client(t.TempDir(), time.Hour)
		i.KeyType, i.PKCS8 = kind, kind == pki.RSA2048
		issued, err := issue(i)
		if err != nil {
			t.Fatalf("%s: %v\n%s", kind, err, a.log.String())
		}
		leaf := issued.Pair.Leaf()
		if issued.Pair.SpiffeID() != i.SpiffeID || len(issued.Roots) != 1 ||
			!issued.Roots[0].Equal(root.Certificate) || time.Until(leaf.NotAfter) > time.Hour {
			t.Errorf("%s: %s, %d roots, until %v", kind, issued.Pair.SpiffeID(), len(issued.Roots),
				leaf.NotAfter)
		}
		// With the certificate and without a token.
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "cert-chain.pem"), issued.Pair.ChainPEM)
		writeFile(t, filepath.Join(dir, "key.pem"), issued.Pair.KeyPEM)
		i.ProvCertDir, i.TokenFile = dir, ""
		if _, err := issue(i); err != nil {
			t.Errorf("%s, mutual TLS: %v", kind, err)
		}
	}
	for name, c := range map[string]struct {
		change func(i *identity.Istiod)
		text   string
	}{
		"expired token": {func(i *identity.Istiod) {
			writeFile(t, i.TokenFile, []byte(a.token(-time.Hour)))
		}, "token: the token expired on"},
		"no token":    {func(i *identity.Istiod) { i.TokenFile += ".not" }, "cannot read token: "},
		"not a token": {func(i *identity.Istiod) { i.TokenFile = i.RootFile }, "no JSON Web Token"},
		"token of another issuer": {func(i *identity.Istiod) {
			text := a.token(time.Hour)
			writeFile(t, i.TokenFile, []byte(text[:len(text)-8]+"AAAAAAAA"))
		}, "code = Unauthenticated"},
		"another root": {func(i *identity.Istiod) {
			other := pkitest.NewAuthority(t, "other", nil)
			writeFile(t, i.RootFile, pkitest.PEM(other.Certificate))
		}, "signed by unknown authority"},
		"expired client certificate": {func(i *identity.Istiod) {
			dir := t.TempDir()
			chain, key := root.Issue(t, pkitest.Leaf("web", -time.Minute))
			writeFile(t, filepath.Join(dir, "cert-chain.pem"), chain)
			writeFile(t, filepath.Join(dir, "key.pem"), key)
			i.ProvCertDir, i.TokenFile = dir, ""
		}, "cert-chain.pem: the certificate of CN=web expired"},
		"nobody listens": {func(i *identity.Istiod) {
			i.Address = "localhost:1"
		}, "connection refused"},
	} {
		i := a.client(t.TempDir(), time.Hour)
		c.change(i)
		if _, err := issue(i); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

// Certificates of ten seconds are renewed in time, over a token that expires and is replaced.
func TestIstiod_ShortLifetimes(t *testing.T) {
	t.Parallel()
	a := startAuthority(t, pkitest.NewAuthority(t, "root", nil))
	var client *identity.Istiod
	r := newRig(t, func(r *rig, options *identity.Options) {
		client = a.client(r.dir, 8*time.Second)
		client.TTL = 10 * time.Second
		options.Settings = identity.Settings{
			Issuer: client, Ratio: 0.5, Output: &identity.Output{Dir: r.dir},
		}
	})
	stop := r.inspect()
	defer stop()
	seen := map[string]bool{}
	next := func() bool {
		if chain := r.chain(identity.Default); chain != "" && !seen[chain] {
			seen[chain] = true
			return true
		}
		return false
	}
	r.await("the first", next)
	r.await("the second", next)
	r.awaitCondition(identity.CodeNotRenewed, "the token expired on")
	writeFile(t, client.TokenFile, []byte(a.token(time.Hour)))
	for _, about := range r.Secrets() {
		if !time.Now().Before(about.NotAfter) {
			t.Errorf("%s expired while the token was replaced", about.Name)
		}
	}
	r.await("one with the new token", next)
	if r.roots() != pemOf(a.root.Certificate) {
		t.Error("the roots are not the authority's")
	}
}

// The authority's root is rotated as Istio does it: the bundle has both, then the new one signs,
// then the old one goes. Connections to the authority follow their root file.
func TestIstiod_RootRotation(t *testing.T) {
	t.Parallel()
	old, next := pkitest.NewAuthority(t, "old", nil), pkitest.NewAuthority(t, "next", nil)
	a := startAuthority(t, old, "ISTIO_MULTIROOT_MESH=true")
	var client *identity.Istiod
	r := newRig(t, func(r *rig, options *identity.Options) {
		client = a.client(r.dir, time.Hour)
		client.TTL = 4 * time.Second
		options.Settings = identity.Settings{Issuer: client, Ratio: 0.5}
	})
	stop := r.inspect()
	defer stop()
	trusts := func(want ...*pkitest.Authority) func() bool {
		return func() bool {
			text := r.roots()
			for _, a := range want {
				if !strings.Contains(text, pemOf(a.Certificate)) {
					return false
				}
			}
			return strings.Count(text, "BEGIN") == len(want)
		}
	}
	issuedBy := func(name string) func() bool {
		return func() bool {
			for _, about := range r.Secrets() {
				if about.Name == identity.Default {
					return about.Issuer == "O="+name
				}
			}
			return false
		}
	}
	r.await("the old root", trusts(old))
	a.sign(old, next)
	r.await("both roots", trusts(old, next))
	writeFile(t, client.RootFile, pkitest.PEM(old.Certificate, next.Certificate))
	a.sign(next, old)
	r.await("a certificate from the new root", issuedBy("next"))
	if !trusts(old, next)() {
		t.Error("the old root is not trusted while peers have its certificates")
	}
	a.sign(next)
	r.await("the new root alone", trusts(next))
	writeFile(t, client.RootFile, pkitest.PEM(next.Certificate))
	before := r.chain(identity.Default)
	r.await("a renewal", func() bool { return r.chain(identity.Default) != before })
}
