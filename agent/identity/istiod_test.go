package identity_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts/signer"
)

// clientOf returns a client of the authority with a token of the given lifetime.
func clientOf(t *testing.T, a *signer.Signer, dir string, lifetime time.Duration) *identity.Istiod {
	t.Helper()
	i := &identity.Istiod{
		Address: a.Address, RootFile: filepath.Join(dir, "root.pem"), ClusterID: "vms",
		TokenFile: filepath.Join(dir, "token"), TTL: time.Hour,
		SpiffeID: pki.SpiffeID("cluster.local", "default", "web"),
	}
	writeFile(t, i.RootFile, pkitest.PEM(a.Root.Certificate))
	writeFile(t, i.TokenFile, []byte(a.Token(t, lifetime)+"\n"))
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
	a := signer.Start(t, root)
	issue := func(i *identity.Istiod) (*identity.IssuedCertificate, error) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		return i.Issue(ctx, nil, nil)
	}
	for _, kind := range []pki.KeyType{pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048} {
		i := clientOf(t, a, t.TempDir(), time.Hour)
		i.KeyType, i.PKCS8 = kind, kind == pki.RSA2048
		issued, err := issue(i)
		if err != nil {
			t.Fatalf("%s: %v\n%s", kind, err, a.Log())
		}
		leaf := issued.Pair.Leaf()
		if issued.Pair.SpiffeID() != i.SpiffeID || len(issued.Roots) != 1 ||
			!issued.Roots[0].Equal(root.Certificate) || time.Until(leaf.NotAfter) > time.Hour {
			t.Errorf("%s: %s, %d roots, until %v", kind, issued.Pair.SpiffeID(), len(issued.Roots),
				leaf.NotAfter)
		}
		// Authenticate with the issued certificate and without a token.
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "cert-chain.pem"), issued.Pair.ChainPEM)
		writeFile(t, filepath.Join(dir, "key.pem"), issued.Pair.KeyPEM)
		i.ProvCertDir, i.TokenFile = dir, ""
		if _, err := issue(i); err != nil {
			t.Errorf("%s, mutual TLS: %v", kind, err)
		}
		// The token has expired: the current certificate authenticates instead, with
		// UseWorkloadCertificate only.
		i = clientOf(t, a, t.TempDir(), -time.Hour)
		for _, i.UseWorkloadCertificate = range []bool{false, true} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			_, err := i.Issue(ctx, nil, issued.Pair)
			cancel()
			if (err == nil) != i.UseWorkloadCertificate {
				t.Errorf("%s, with the current certificate (%v): %v", kind,
					i.UseWorkloadCertificate, err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(i *identity.Istiod)
		text   string
	}{
		"expired token": {func(i *identity.Istiod) {
			writeFile(t, i.TokenFile, []byte(a.Token(t, -time.Hour)))
		}, "token: the token expired on"},
		"expired token of a join": {func(i *identity.Istiod) {
			i.FromJoin = true
			writeFile(t, i.TokenFile, []byte(a.Token(t, -time.Hour)))
		}, `; or run "outrider join" with a new token`},
		"no token":    {func(i *identity.Istiod) { i.TokenFile += ".not" }, "cannot read token: "},
		"not a token": {func(i *identity.Istiod) { i.TokenFile = i.RootFile }, "no JSON Web Token"},
		"token of another issuer": {func(i *identity.Istiod) {
			text := a.Token(t, time.Hour)
			writeFile(t, i.TokenFile, []byte(text[:len(text)-8]+"AAAAAAAA"))
		}, "write a token for the audience"},
		"another root": {func(i *identity.Istiod) {
			other := pkitest.NewAuthority(t, "other", nil)
			writeFile(t, i.RootFile, pkitest.PEM(other.Certificate))
		}, "; write the root of its certificate into "},
		"expired client certificate": {func(i *identity.Istiod) {
			dir := t.TempDir()
			chain, key := root.Issue(t, pkitest.LeafTemplate("web", -time.Minute))
			writeFile(t, filepath.Join(dir, "cert-chain.pem"), chain)
			writeFile(t, filepath.Join(dir, "key.pem"), key)
			i.ProvCertDir, i.TokenFile = dir, ""
		}, "cert-chain.pem: the certificate of CN=web expired"},
		"nobody listens": {func(i *identity.Istiod) {
			i.Address = "localhost:1"
		}, "connection refused"},
	} {
		i := clientOf(t, a, t.TempDir(), time.Hour)
		c.change(i)
		if _, err := issue(i); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

type usedAddress string

func (u usedAddress) ConfiguredAddress() string { return string(u) }

// Of several addresses of the authority, the one to which the agent is connected is tried first,
// and then the others.
func TestIstiod_SeveralAddresses(t *testing.T) {
	t.Parallel()
	a := signer.Start(t, pkitest.NewAuthority(t, "root", nil))
	i := clientOf(t, a, t.TempDir(), time.Hour)
	i.Address = "localhost:1, " + a.Address + ", localhost:2"
	for _, inUse := range []identity.AddressInUse{nil, usedAddress(a.Address),
		usedAddress("localhost:2"),
		usedAddress("elsewhere:3")} {
		i.InUse = inUse
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		_, err := i.Issue(ctx, nil, nil)
		cancel()
		if err != nil {
			t.Errorf("%v in use: %v", inUse, err)
		}
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	i.Address, i.InUse = other.Addr().String()+", "+a.Address, usedAddress(a.Address)
	if _, err := i.Issue(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
	_ = other.(*net.TCPListener).SetDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := other.Accept(); err == nil {
		t.Error("another address than the one in use was tried first")
	}
	i.Address = "localhost:1, localhost:2"
	if _, err := i.Issue(t.Context(), nil, nil); err == nil ||
		!strings.Contains(err.Error(), "istiod at localhost:1 ") ||
		!strings.Contains(err.Error(), "istiod at localhost:2 ") {
		t.Errorf("no authority: %v", err)
	}
}

// Certificates with a lifetime of ten seconds are renewed in time, also when the token has expired
// and is then replaced.
func TestIstiod_ShortLifetimes(t *testing.T) {
	t.Parallel()
	a := signer.Start(t, pkitest.NewAuthority(t, "root", nil))
	var client *identity.Istiod
	r := newRig(t, func(r *rig, options *identity.Options) {
		client = clientOf(t, a, r.dir, 8*time.Second)
		client.TTL = 10 * time.Second
		options.Settings = identity.Settings{
			Identity: config.Identity{GraceRatio: 0.5, OutputDir: r.dir}, Issuer: client,
		}
	})
	stop := r.inspect()
	defer stop()
	seen := map[string]bool{}
	next := func() bool {
		if chain := r.chain(identity.DefaultSecret); chain != "" && !seen[chain] {
			seen[chain] = true
			return true
		}
		return false
	}
	r.await("the first", next)
	r.await("the second", next)
	r.awaitCondition(identity.CodeNotRenewed, "the token expired on")
	writeFile(t, client.TokenFile, []byte(a.Token(t, time.Hour)))
	for _, about := range r.Secrets() {
		if !time.Now().Before(about.NotAfter) {
			t.Errorf("%s expired while the token was replaced", about.Name)
		}
	}
	r.await("one with the new token", next)
	if r.roots() != pemOf(a.Root.Certificate) {
		t.Error("the roots are not the authority's")
	}
}

// When the authority's root is rotated in Istio's three steps, certificates are renewed without an
// error: both roots are trusted, then the new root signs, then the old root is removed. The agent
// reads the file with the authority's roots again for each connection.
func TestIstiod_RootRotation(t *testing.T) {
	t.Parallel()
	old, next := pkitest.NewAuthority(t, "old", nil), pkitest.NewAuthority(t, "next", nil)
	a := signer.Start(t, old, "ISTIO_MULTIROOT_MESH=true")
	var client *identity.Istiod
	r := newRig(t, func(r *rig, options *identity.Options) {
		client = clientOf(t, a, r.dir, time.Hour)
		client.TTL = 4 * time.Second
		options.Settings = identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: client}
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
				if about.Name == identity.DefaultSecret {
					return about.Issuer == "O="+name
				}
			}
			return false
		}
	}
	r.await("the old root", trusts(old))
	a.ReplaceAuthority(t, old, next)
	r.await("both roots", trusts(old, next))
	writeFile(t, client.RootFile, pkitest.PEM(old.Certificate, next.Certificate))
	a.ReplaceAuthority(t, next, old)
	r.await("a certificate from the new root", issuedBy("next"))
	if !trusts(old, next)() {
		t.Error("the old root is not trusted while peers have its certificates")
	}
	a.ReplaceAuthority(t, next)
	r.await("the new root alone", trusts(next))
	writeFile(t, client.RootFile, pkitest.PEM(next.Certificate))
	before := r.chain(identity.DefaultSecret)
	r.await("a renewal", func() bool { return r.chain(identity.DefaultSecret) != before })
}
