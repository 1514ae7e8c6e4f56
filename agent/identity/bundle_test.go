package identity_test

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// The roots of a SPIFFE bundle are trusted beside the provider's, follow it, stay while it cannot be
// fetched, and go with its URL.
func TestBundle_RootsOfAnotherTrustDomain(t *testing.T) {
	t.Parallel()
	var bundle atomic.Pointer[string]
	server := httptest.NewTLSServer(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			if text := bundle.Load(); text != nil {
				_, _ = fmt.Fprint(w, *text)
				return
			}
			http.Error(w, "away", http.StatusBadGateway)
		}))
	t.Cleanup(server.Close)
	serve := func(authority *x509.Certificate) {
		text := fmt.Sprintf(`{"keys": [{"use": "jwt-svid", "kty": "EC"},
			{"use": "x509-svid", "kty": "EC", "x5c": [%q]}], "spiffe_refresh_hint": 1}`,
			base64.StdEncoding.EncodeToString(authority.Raw))
		bundle.Store(&text)
	}
	r := newRig(t, func(r *rig, options *identity.Options) {
		r.issue(time.Hour)
		options.HTTP = server.Client()
	})
	r.await("the own root", func() bool { return r.roots() == pemOf(r.root.Certificate) })
	url := server.URL + "/bundle"
	r.SetBundleURLs([]string{url})
	r.awaitCondition(identity.CodeBundle, url+": it answers 502")
	first, second := pkitest.NewAuthority(t, "one", nil), pkitest.NewAuthority(t, "two", nil)
	for _, authority := range []*x509.Certificate{first.Certificate, second.Certificate} {
		serve(authority)
		r.await("the root of the bundle", func() bool {
			return r.roots() == pemOf(r.root.Certificate, authority)
		})
	}
	if len(r.AnnouncedRoots()) > 0 {
		t.Error("the agent's own connections trust the authorities of another trust domain")
	}
	for _, condition := range r.board.Conditions() {
		t.Errorf("after the cure: %v", condition)
	}
	text := strings.Replace(*bundle.Load(), "x509-svid", "other", 1)
	bundle.Store(&text)
	r.awaitCondition(identity.CodeBundle, "its content")
	if r.roots() != pemOf(r.root.Certificate, second.Certificate) {
		t.Error("the roots are gone with a bundle that has none")
	}
	r.SetBundleURLs(nil)
	if r.roots() != pemOf(r.root.Certificate) || len(r.board.Conditions()) > 0 {
		t.Errorf("without the URL: conditions %v", r.board.Conditions())
	}
}
