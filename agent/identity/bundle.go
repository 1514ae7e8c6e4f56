package identity

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/fetch"
	"outrider.org/outrider/agent/identity/pki"
)

// CodeBundleUnavailable is the condition for SPIFFE bundles that cannot be fetched.
const CodeBundleUnavailable = "trust-bundle-unavailable"

// A bundle is fetched again after its spiffe_refresh_hint, at least minBundleRefresh and at most
// maxBundleRefresh. After a failure, pauses double from firstBundleRetry to bundleRefresh.
const (
	bundleRefresh    = 5 * time.Minute // interval for a bundle without spiffe_refresh_hint
	minBundleRefresh = time.Minute
	maxBundleRefresh = time.Hour
	firstBundleRetry = time.Second
	bundleFetchTime  = 10 * time.Second
	maxBundleBytes   = 1 << 20
)

// fetcher is a goroutine that fetches a SPIFFE bundle.
type fetcher struct {
	stop context.CancelFunc
	err  error // of the last attempt; nil: it succeeded
}

// SetBundleURLs sets the URLs of the SPIFFE bundles whose roots Envoy trusts in addition to those
// of the identity provider. While a bundle cannot be fetched, its last roots remain trusted.
func (m *Manager) SetBundleURLs(urls []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bundleURLs = urls
	if m.running != nil {
		m.updateFetchers()
	}
}

// updateFetchers starts and stops fetchers. Callers hold mu.
func (m *Manager) updateFetchers() {
	for url, f := range m.fetchers {
		if !slices.Contains(m.bundleURLs, url) {
			f.stop()
			delete(m.fetchers, url)
			delete(m.bundles, url)
		}
	}
	for _, url := range m.bundleURLs {
		if m.fetchers[url] == nil {
			ctx, stop := context.WithCancel(m.running)
			f := &fetcher{stop: stop}
			m.fetchers[url] = f
			go m.repeatFetch(ctx, url, f)
		}
	}
	m.updateBundles()
	m.storeSoon()
}

// updateBundles publishes the roots, and raises or clears the condition. Callers hold mu.
func (m *Manager) updateBundles() {
	var failed []string
	for _, url := range slices.Sorted(maps.Keys(m.fetchers)) {
		if err := m.fetchers[url].err; err != nil {
			failed = append(failed, "cannot fetch the SPIFFE bundle "+url+": "+err.Error()+
				"; check its server, or correct spiffeBundleUrl in the MeshConfig")
		}
	}
	if len(failed) > 0 {
		m.options.Conditions.Raise(CodeBundleUnavailable, condition.Warning, strings.Join(failed,
			"; "))
	} else {
		m.options.Conditions.Clear(CodeBundleUnavailable)
	}
	m.update()
}

// repeatFetch fetches a bundle until ctx ends.
func (m *Manager) repeatFetch(ctx context.Context, url string, f *fetcher) {
	retries := backoff.Backoff{Min: firstBundleRetry, Max: bundleRefresh}
	for {
		roots, wait, err := fetchBundle(ctx, m.options.HTTP, url)
		m.mu.Lock()
		if ctx.Err() != nil {
			m.mu.Unlock()
			return
		}
		if f.err = err; err != nil {
			wait = retries.Next()
		} else {
			retries.Reset()
			if !slices.EqualFunc(m.bundles[url], roots, (*x509.Certificate).Equal) {
				m.bundles[url] = roots
				m.storeSoon()
			}
		}
		m.updateBundles()
		m.mu.Unlock()
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// fetchBundle returns the X.509 authorities of a SPIFFE bundle, and when to fetch it again.
func fetchBundle(
	ctx context.Context, client *http.Client, url string,
) ([]*x509.Certificate, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, bundleFetchTime)
	defer cancel()
	text, err := fetch.Get(ctx, client, url, maxBundleBytes)
	if err != nil {
		return nil, 0, err
	}
	var bundle struct {
		Keys []struct {
			Use          string   `json:"use"`
			Certificates [][]byte `json:"x5c"`
		} `json:"keys"`
		RefreshHint int64 `json:"spiffe_refresh_hint"` // seconds
	}
	if err := json.Unmarshal(text, &bundle); err != nil {
		return nil, 0, fmt.Errorf("not a SPIFFE bundle: %w", err)
	}
	var roots []*x509.Certificate
	for _, key := range bundle.Keys {
		if key.Use != "x509-svid" {
			continue
		}
		for _, der := range key.Certificates {
			root, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, 0, fmt.Errorf("cannot parse a CA certificate of the SPIFFE bundle: %w",
					err)
			}
			roots = append(roots, root)
		}
	}
	roots, err = pki.ParseRoots(pki.PEMInput{File: "its content",
		PEM: pki.EncodeCertificates(roots)},
		time.Now())
	wait := bundleRefresh
	if bundle.RefreshHint > 0 {
		wait = max(minBundleRefresh,
			time.Duration(min(bundle.RefreshHint, int64(maxBundleRefresh/time.Second)))*time.Second)
	}
	return roots, wait, err
}
