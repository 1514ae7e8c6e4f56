package identity_test

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// lateIssuer implements identity.Issuer. It fails until it has an answer.
type lateIssuer struct {
	mu     sync.Mutex
	answer *identity.Issued
}

func (l *lateIssuer) Issue(context.Context, []*x509.Certificate) (*identity.Issued, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answer == nil {
		return nil, errors.New("the authority is away")
	}
	return l.answer, nil
}

func (l *lateIssuer) Files() []string { return nil }

// A reload that changes the provider may take long: until the new provider has a certificate, the
// old one's is served and renewed.
func TestProvider_OldOneServesUntilTheNewOneHasACertificate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	r.awaitChain(identity.Default, r.issue(2*time.Hour))
	issuer, other := &lateIssuer{}, pkitest.NewAuthority(t, "other", nil)
	r.Configure(identity.Settings{Issuer: issuer, Ratio: 0.5})
	r.awaitCondition(identity.CodeNotRenewed, "the authority is away")
	r.awaitChain(identity.Default, r.issue(3*time.Hour))
	if r.roots() != pemOf(r.root.Certificate) {
		t.Error("the roots are gone before the authority has answered")
	}
	pair := issuePair(t, other, time.Hour)
	issuer.mu.Lock()
	issuer.answer = &identity.Issued{
		Pair: pair, Roots: roots(other), Obtained: time.Now(), Source: identity.FromIstiod,
	}
	issuer.mu.Unlock()
	r.awaitChain(identity.Default, pair.ChainPEM)
	if r.roots() != pemOf(other.Certificate) {
		t.Error("the authority's roots are not served with its certificate")
	}
	r.issue(4 * time.Hour) // of no effect now

	if err := os.Remove(r.path("root.pem")); err != nil {
		t.Fatal(err)
	}
	r.Configure(identity.Settings{Files: r.files()})
	r.awaitCondition(identity.CodeNotRenewed, "root.pem")
	if r.roots() != pemOf(other.Certificate) {
		t.Error("the authority's roots are gone before the file exists")
	}
	chain := r.issue(5 * time.Hour)
	r.awaitChain(identity.Default, chain)
	r.await("roots", func() bool { return r.roots() == pemOf(r.root.Certificate) })
	r.Configure(identity.Settings{})
	if left := r.Secrets(); len(left) > 0 {
		t.Errorf("without a provider: %v", left)
	}
}

// While a reload is pending, only what Envoy lacks comes from the new settings.
func TestProvider_PendingSettingsReplaceNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	r.awaitChain(identity.Default, r.issue(2*time.Hour))
	other := pkitest.NewAuthority(t, "other", nil)
	pair := issuePair(t, other, time.Hour)
	issuer := &lateIssuer{answer: &identity.Issued{
		Pair: pair, Roots: roots(other), Obtained: time.Now(), Source: identity.FromIstiod,
	}}
	r.Prepare(identity.Settings{Issuer: issuer, Ratio: 0.5})
	r.awaitChain(identity.Default, r.issue(3*time.Hour))
	chain := r.issue(4 * time.Hour)
	r.awaitChain(identity.Default, chain)
	r.Prepare(identity.Settings{})
	if r.chain(identity.Default) != string(chain) || r.roots() != pemOf(r.root.Certificate) {
		t.Error("pending settings removed or replaced what Envoy has")
	}
	r.Configure(identity.Settings{})
	r.Prepare(identity.Settings{Issuer: issuer, Ratio: 0.5})
	r.awaitChain(identity.Default, pair.ChainPEM)
}
