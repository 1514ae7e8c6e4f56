package main

import (
	"crypto/x509"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// phase is a step of a CA rotation: the CA that signs, and the roots that are trusted.
type phase struct {
	with  *pkitest.Authority
	roots []*pkitest.Authority
}

// TestCA_RotationFailsNoRenewal replaces the CA in three steps. Meanwhile 30 clients renew their
// certificates, and authenticate with the previous ones: no renewal fails. A step ends once each
// client has a certificate and the roots of that step.
func TestCA_RotationFailsNoRenewal(t *testing.T) {
	t.Parallel()
	const clients, perSecond = 30, 100
	old, next := pkitest.NewAuthority(t, "old", nil), pkitest.NewAuthority(t, "next", nil)
	s := startSigning(t, old, old)
	agent := s.agent()
	var current [clients]*identity.IssuedCertificate
	for i := range current {
		var err error
		if current[i], err = agent.Issue(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	agent.UseWorkloadCertificate, agent.TokenFile = true, ""
	renewals, begun := 0, time.Now()
	for _, p := range []phase{{old, []*pkitest.Authority{old, next}},
		{next, []*pkitest.Authority{old, next}}, {next, []*pkitest.Authority{next}}} {
		s.sign(p.with, p.roots...)
		var wait sync.WaitGroup
		var failed, counted atomic.Int64
		turns := make(chan struct{})
		for i := range current {
			wait.Go(func() {
				for range turns {
					issued, err := agent.Issue(t.Context(), nil, current[i].Pair)
					if err != nil {
						failed.Add(1)
						t.Error(err)
						return
					}
					current[i] = issued
					counted.Add(1)
					if len(issued.Roots) == len(p.roots) && issued.Pair.IssuedBy(
						[]*x509.Certificate{p.with.Certificate}) && counted.Load() >= perSecond {
						return // this client has completed the phase
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wait.Wait(); close(done) }()
		tick, late := time.NewTicker(time.Second/perSecond), time.After(2*time.Minute)
		for running := true; running; {
			select {
			case <-done:
				running = false
			case <-tick.C:
				select {
				case turns <- struct{}{}:
				case <-done:
					running = false
				}
			case <-late:
				t.Fatal("clients do not see the files of [ca]")
			}
		}
		tick.Stop()
		renewals += int(counted.Load())
		if failed.Load() > 0 {
			t.Fatalf("%d renewals failed\n%s", failed.Load(), logOf(s.file))
		}
	}
	t.Logf("%d renewals, %.0f a second", renewals,
		float64(renewals)/time.Since(begun).Seconds())
	if log := logOf(s.file); strings.Contains(log, "refused certificate request") ||
		strings.Contains(log, "refused client certificate") {
		t.Errorf("something was refused:\n%s", log)
	}
}
