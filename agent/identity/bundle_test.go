package identity_test

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// bundleServer implements http.RoundTripper without a network: in a synctest bubble, time does not
// advance while a goroutine waits for the network.
type bundleServer struct {
	text    atomic.Value // string, the response; without one the request fails
	fetched atomic.Int32
}

func (s *bundleServer) RoundTrip(*http.Request) (*http.Response, error) {
	s.fetched.Add(1)
	w := httptest.NewRecorder()
	if text, ok := s.text.Load().(string); ok {
		_, _ = w.WriteString(text)
	} else {
		http.Error(w, "away", http.StatusBadGateway)
	}
	return w.Result(), nil
}

// bundleOf returns a SPIFFE bundle with one authority and a refresh hint of one second.
func bundleOf(authority *pkitest.Authority) string {
	return fmt.Sprintf(`{"keys": [{"use": "jwt-svid", "kty": "EC"},
		{"use": "x509-svid", "kty": "EC", "x5c": [%q]}], "spiffe_refresh_hint": 1}`,
		base64.StdEncoding.EncodeToString(authority.Certificate.Raw))
}

// newBundleRig returns a rig whose certificate comes from an authority and not from files.
func newBundleRig(
	t *testing.T, server *bundleServer, change func(*rig, *identity.Options),
) *rig {
	return newRig(t, func(r *rig, options *identity.Options) {
		options.Settings = identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: &lateIssuer{
			answer: &identity.IssuedCertificate{Pair: issuePair(t, r.root, 200*time.Hour),
				Roots: roots(r.root), Obtained: time.Now(), Source: identity.FromIstiod}}}
		options.HTTP, options.Watcher = &http.Client{Transport: server}, &fakeWatcher{}
		if change != nil {
			change(r, options)
		}
	})
}

// The roots of a SPIFFE bundle are served in addition to the provider's. They change with the
// bundle, remain while it cannot be fetched, and are removed with its URL.
func TestBundle_RootsOfAnotherTrustDomain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &bundleServer{}
		r := newBundleRig(t, server, nil)
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		trusts := func(when string, others ...*pkitest.Authority) {
			t.Helper()
			if r.roots() != pemOf(append(roots(r.root), roots(others...)...)...) {
				t.Errorf("%s: other roots are served; conditions %v", when, r.board.Conditions())
			}
		}
		wait(time.Millisecond)
		trusts("without a bundle")
		const url = "https://one.test/bundle"
		r.SetBundleURLs([]string{url})
		r.awaitCondition(identity.CodeBundleUnavailable, url+": the server answers 502 Bad "+
			"Gateway; check "+
			"its server")
		first, second := pkitest.NewAuthority(t, "one", nil), pkitest.NewAuthority(t, "two", nil)
		server.text.Store(bundleOf(first))
		wait(2 * time.Second)
		trusts("after a failure", first)
		if len(r.AuthorityRoots()) != 1 {
			t.Error("the agent's own connections trust the authorities of another trust domain")
		}
		fetched := server.fetched.Load()
		server.text.Store(bundleOf(second))
		wait(50 * time.Second)
		if now := server.fetched.Load(); now != fetched {
			t.Errorf("%d fetches in a minute", now-fetched)
		}
		wait(10 * time.Second)
		trusts("after a change", second)
		for _, condition := range r.board.Conditions() {
			t.Errorf("after the cure: %v", condition)
		}
		for problem, text := range map[string]string{
			"its content":            strings.Replace(bundleOf(second), "x509-svid", "other", 1),
			"the response is larger": bundleOf(second) + strings.Repeat(" ", 1<<20),
		} {
			server.text.Store(text)
			wait(6 * time.Minute)
			r.awaitCondition(identity.CodeBundleUnavailable, problem)
			trusts("with a bundle that cannot be used", second)
		}
		r.SetBundleURLs(nil)
		trusts("without the URL")
		if len(r.board.Conditions()) > 0 {
			t.Errorf("without the URL: conditions %v", r.board.Conditions())
		}
	})
}

// A change of the roots does not write the sealed certificate again.
func TestBundle_DoesNotSealTheSameCertificateAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &bundleServer{}
		path := filepath.Join(t.TempDir(), "sealed")
		sealed, err := identity.NewSealedStore(path, "me", []byte(strings.Repeat("a", 32)))
		if err != nil {
			t.Fatal(err)
		}
		r := newBundleRig(t, server, func(_ *rig, options *identity.Options) {
			options.Settings.Sealed = sealed
		})
		time.Sleep(time.Second)
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		r.SetTrustBundle("MeshConfig", []*x509.Certificate{r.root.Certificate})
		time.Sleep(time.Second)
		if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("the certificate was sealed again; error %v", err)
		}
	})
}

// After a restart of the agent, Envoy receives the stored roots of SPIFFE bundles although the
// server of the bundles is unavailable. Stored roots are deleted if the URL of their bundle is no
// longer set.
func TestBundle_RootsSurviveARestart(t *testing.T) {
	t.Parallel()
	path, server := filepath.Join(t.TempDir(), "bundles"), &bundleServer{}
	var other *pkitest.Authority
	for _, test := range []struct {
		name      string
		url, want bool
	}{{"first", true, true}, {"restart", true, true}, {"without", false, false},
		{"again", true, false}} {
		synctest.Test(t, func(t *testing.T) {
			if other == nil {
				other = pkitest.NewAuthority(t, "one", nil)
				server.text.Store(bundleOf(other))
			}
			r := newBundleRig(t, server, func(r *rig, options *identity.Options) {
				options.BundleFile = path
				if test.url {
					r.bundleURLs = []string{"https://one.test/bundle"}
				}
			})
			time.Sleep(time.Millisecond)
			synctest.Wait()
			server.text.Store("away")
			want := pemOf(r.root.Certificate)
			if test.want {
				want = pemOf(r.root.Certificate, other.Certificate)
			}
			if r.roots() != want {
				t.Errorf("%s: other roots; conditions %v", test.name, r.board.Conditions())
			}
		})
	}
}
