package ca

import (
	"crypto/x509"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/watch"
)

// TestObserve replaces the files of [ca] one by one, so that they temporarily do not belong
// together, and removes the old root too early. It checks the conditions after each step and at
// later times.
func TestObserve(t *testing.T) {
	old, next := pkitest.NewAuthority(t, "old", nil), pkitest.NewAuthority(t, "next", nil)
	settings := files(t, pkitest.PEM(old.Certificate), pkitest.KeyPEM(t, old.Key),
		pkitest.PEM(old.Certificate))
	board := condition.NewRegistry()
	trusted := 0
	s, err := New(settings, Options{Conditions: board, Logger: slog.New(slog.DiscardHandler),
		TrustClientRoots: func(roots []*x509.Certificate) { trusted = len(roots) },
		Watcher:          watch.NewNotifier(watch.Delays{}, nil)})
	if err != nil {
		t.Fatal(err)
	}
	put := func(path string, text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s.reread()
	}
	expect := func(what string, at time.Time, want ...string) {
		t.Helper()
		s.CheckExpiry(at)
		var codes []string
		for _, c := range board.Conditions() {
			codes = append(codes, c.Code)
		}
		slices.Sort(codes)
		if !slices.Equal(codes, want) {
			t.Errorf("%s: %q, want %q", what, codes, want)
		}
	}
	now := time.Now()
	expect("at first", now)
	put(settings.CertFile, pkitest.PEM(next.Certificate))
	expect("half of the files", now, conditionRefused)
	put(settings.KeyFile, pkitest.KeyPEM(t, next.Key))
	expect("without the new root", now, conditionRefused)
	put(settings.RootFile, pkitest.PEM(old.Certificate, next.Certificate))
	expect("both roots", now)
	if trusted != 2 || !s.current.Load().certificate.Equal(next.Certificate) {
		t.Errorf("%d roots, signed by %s", trusted, s.current.Load().certificate.Subject)
	}
	put(settings.RootFile, pkitest.PEM(next.Certificate))
	expect("the old root is removed too early", now, conditionRoot)
	expect("its certificates have ended", now.Add(2*time.Hour))
	settings.MaxTTL = time.Minute
	s.Configure(settings)
	put(settings.CertFile, pkitest.PEM(old.Certificate))
	put(settings.KeyFile, pkitest.KeyPEM(t, old.Key))
	put(settings.RootFile, pkitest.PEM(old.Certificate))
	expect("certificates of the time before max_ttl was shortened", now.Add(30*time.Minute),
		conditionRoot)
	put(settings.CertFile, pkitest.PEM(next.Certificate))
	put(settings.KeyFile, pkitest.KeyPEM(t, next.Key))
	put(settings.RootFile, pkitest.PEM(next.Certificate))
	expect("before the end of the chain", next.Certificate.NotAfter.Add(-time.Hour), conditionExpires)
}
