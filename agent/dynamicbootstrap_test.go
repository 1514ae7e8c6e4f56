package agent

import (
	"context"
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
)

// slowIssuer implements identity.Issuer. It issues a certificate after a delay.
type slowIssuer struct {
	answer *identity.IssuedCertificate
	after  time.Duration
}

func (s *slowIssuer) Issue(
	ctx context.Context, _ []*x509.Certificate, _ *pki.Pair,
) (*identity.IssuedCertificate, error) {
	select {
	case <-time.After(s.after):
		return s.answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *slowIssuer) Files() []string { return nil }

// noFiles implements identity.Watcher, because the real one cannot run in a synctest bubble.
type noFiles struct{}

func (noFiles) Run(context.Context) error            { return nil }
func (noFiles) Watch([]string, func()) (stop func()) { return func() {} }

// With auth = "mtls", the first request for a bootstrap waits until the workload has a certificate.
func TestDynamicBootstrap_AwaitsTheCertificate(t *testing.T) {
	for _, issued := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			root := pkitest.NewAuthority(t, "root", nil)
			chain, key := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
			pair, err := pki.ParsePair(pki.PEMInput{PEM: chain}, pki.PEMInput{PEM: key},
				pki.UsageBoth)
			if err != nil {
				t.Fatal(err)
			}
			issuer := &slowIssuer{after: issued, answer: &identity.IssuedCertificate{Pair: pair,
				Roots: []*x509.Certificate{root.Certificate}, Obtained: time.Now()}}
			b := &bootstraps{identity: identity.New(identity.Options{Conditions: condition.NewRegistry(),
				Settings: identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: issuer}, Watcher: noFiles{}})}
			go func() { _ = b.identity.Run(t.Context()) }()
			began := time.Now()
			b.awaitCertificate(t.Context())
			if waited := time.Since(began); waited != min(issued, certificateWait) {
				t.Errorf("issued after %v: waited for %v", issued, waited)
			}
		})
	}
}
