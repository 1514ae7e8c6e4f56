package identity_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// lateIssuer implements identity.Issuer. It fails until it has an answer.
type lateIssuer struct {
	mu     sync.Mutex
	answer *identity.IssuedCertificate
}

func (l *lateIssuer) Issue(context.Context, []*x509.Certificate, *pki.Pair) (
	*identity.IssuedCertificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answer == nil {
		return nil, errors.New("the authority is unavailable")
	}
	return l.answer, nil
}

func (l *lateIssuer) Files() []string { return nil }

// After a reload that changes the identity provider, the certificate of the old provider is served
// and renewed until the new provider has one.
func TestProvider_OldOneServesUntilTheNewOneHasACertificate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	r.awaitChain(identity.DefaultSecret, r.issue(2*time.Hour))
	issuer, other := &lateIssuer{}, pkitest.NewAuthority(t, "other", nil)
	r.Configure(identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: issuer})
	r.awaitCondition(identity.CodeNotRenewed, "the authority is unavailable")
	r.awaitChain(identity.DefaultSecret, r.issue(3*time.Hour))
	if r.roots() != pemOf(r.root.Certificate) {
		t.Error("the roots are gone before the authority has answered")
	}
	pair := issuePair(t, other, time.Hour)
	issuer.mu.Lock()
	issuer.answer = &identity.IssuedCertificate{
		Pair: pair, Roots: roots(other), Obtained: time.Now(), Source: identity.FromIstiod,
	}
	issuer.mu.Unlock()
	r.awaitChain(identity.DefaultSecret, pair.ChainPEM)
	if r.roots() != pemOf(other.Certificate) {
		t.Error("the authority's roots are not served with its certificate")
	}
	r.issue(4 * time.Hour) // has no effect: the provider is no longer "files"

	if err := os.Remove(r.path("root.pem")); err != nil {
		t.Fatal(err)
	}
	r.Configure(identity.Settings{Identity: r.files()})
	r.awaitCondition(identity.CodeNotRenewed, "root.pem")
	if r.roots() != pemOf(other.Certificate) {
		t.Error("the authority's roots are gone before the file exists")
	}
	chain := r.issue(5 * time.Hour)
	r.awaitChain(identity.DefaultSecret, chain)
	r.await("roots", func() bool { return r.roots() == pemOf(r.root.Certificate) })
	r.Configure(identity.Settings{})
	if left := r.Secrets(); len(left) > 0 {
		t.Errorf("without a provider: %v", left)
	}
}

// While a reload is pending, its settings provide only secrets that do not exist yet.
func TestProvider_PendingSettingsReplaceNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	r.awaitChain(identity.DefaultSecret, r.issue(2*time.Hour))
	r.await("the roots", func() bool { return r.roots() != "" })
	other := pkitest.NewAuthority(t, "other", nil)
	pair := issuePair(t, other, time.Hour)
	issuer := &lateIssuer{answer: &identity.IssuedCertificate{
		Pair: pair, Roots: roots(other), Obtained: time.Now(), Source: identity.FromIstiod,
	}}
	r.PrepareReload(identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: issuer})
	r.awaitChain(identity.DefaultSecret, r.issue(3*time.Hour))
	chain := r.issue(4 * time.Hour)
	r.awaitChain(identity.DefaultSecret, chain)
	r.PrepareReload(identity.Settings{})
	if r.chain(identity.DefaultSecret) != string(chain) || r.roots() != pemOf(r.root.Certificate) {
		t.Error("pending settings removed or replaced what Envoy has")
	}
	r.Configure(identity.Settings{})
	r.PrepareReload(identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: issuer})
	r.awaitChain(identity.DefaultSecret, pair.ChainPEM)
}

// The settings of a pending reload do not replace secrets of earlier settings that a draining Envoy
// is subscribed to. They provide these secrets once that Envoy has ended.
func TestProvider_PendingSettingsOutliveADrain(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	both := []string{identity.DefaultSecret, identity.RootCASecret}
	r.Subscribe(both)
	r.awaitChain(identity.DefaultSecret, r.issue(2*time.Hour))
	r.Configure(identity.Settings{})
	other := pkitest.NewAuthority(t, "other", nil)
	pair := issuePair(t, other, time.Hour)
	r.PrepareReload(identity.Settings{Identity: config.Identity{GraceRatio: 0.5},
		Issuer: &lateIssuer{answer: &identity.IssuedCertificate{
			Pair: pair, Roots: roots(other), Obtained: time.Now(), Source: identity.FromIstiod,
		}}})
	r.Unsubscribe(both)
	r.Subscribe(both)
	r.awaitChain(identity.DefaultSecret, pair.ChainPEM)
	r.await("the roots", func() bool { return r.roots() == pemOf(other.Certificate) })
}

// The settings of a pending reload provide missing secrets but write no files. If the reload is
// refused, the secrets are removed.
func TestProvider_RefusedSettingsLeaveNothing(t *testing.T) {
	t.Parallel()
	old, refused := filepath.Join(t.TempDir(), "old"), filepath.Join(t.TempDir(), "new")
	var inForce identity.Settings
	r := newRig(t, func(r *rig, options *identity.Options) { // certificate files do not exist yet
		options.Settings.OutputDir = old
		inForce = options.Settings
	})
	r.awaitCondition(identity.CodeUnavailable, "cert.pem")
	other := pkitest.NewAuthority(t, "other", nil)
	pair := issuePair(t, other, time.Hour)
	pending := identity.Settings{Identity: config.Identity{GraceRatio: 0.5, OutputDir: refused},
		Issuer: &lateIssuer{answer: &identity.IssuedCertificate{
			Pair: pair, Roots: roots(other), Obtained: time.Now(), Source: identity.FromIstiod,
		}}}
	r.PrepareReload(pending)
	r.awaitChain(identity.DefaultSecret, pair.ChainPEM)
	r.Configure(inForce)
	if r.secret(identity.DefaultSecret) != nil || r.secret(identity.RootCASecret) != nil {
		t.Error("secrets of refused settings are still provided")
	}
	chain := r.issue(2 * time.Hour)
	r.awaitChain(identity.DefaultSecret, chain)
	r.awaitFile(filepath.Join(old, "cert-chain.pem"), chain)
	if _, err := os.Stat(refused); err == nil {
		t.Errorf("%s was written for refused settings", refused)
	}
	r.Configure(identity.Settings{})
	r.PrepareReload(pending)
	r.awaitChain(identity.DefaultSecret, pair.ChainPEM)
	r.Configure(pending)
	r.awaitFile(filepath.Join(refused, "cert-chain.pem"), pair.ChainPEM)
	if r.chain(identity.DefaultSecret) != string(pair.ChainPEM) {
		t.Error("the commit took the secret back")
	}
}

// awaitFile waits until a file has the content want.
func (r *rig) awaitFile(path string, want []byte) {
	r.t.Helper()
	parts.Eventually(r.t, deadline, path+" is written", func() bool {
		got, err := os.ReadFile(path)
		return err == nil && bytes.Equal(got, want)
	})
}
