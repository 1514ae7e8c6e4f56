package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/lifecycle"
)

// stored records the certificate that was sealed last, and the store that has it.
type stored struct {
	pair *material
	in   *SealedStore
}

// store writes the workload's certificate and the roots of SPIFFE bundles to disk, or removes them,
// after each change until ctx ends. After a failure it retries every minute.
func (m *Manager) store(ctx context.Context) {
	for {
		err := m.storeOnce()
		if err != nil {
			m.options.Conditions.Raise(CodeNotStored, condition.Warning, err.Error())
		} else {
			m.options.Conditions.Clear(CodeNotStored)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.dirty:
		case <-lifecycle.RetryTimer(err):
		}
	}
}

func (m *Manager) storeOnce() error {
	m.mu.Lock()
	last := m.sealed
	output, sealed, issuer := m.settings.output(), m.settings.Sealed, m.settings.Issuer
	stale := m.settings.StaleStoreFile
	if output != nil && filepath.Dir(m.settings.files().Cert) == filepath.Clean(output.Dir) {
		output = nil // do not overwrite the files that the certificate was read from
	}
	pair, roots := m.version(DefaultSecret), m.version(RootCASecret)
	if m.provisional {
		pair = nil
	}
	bundles := map[string][]byte{}
	for url := range m.fetchers {
		if roots := m.bundles[url]; roots != nil {
			bundles[url] = pki.EncodeCertificates(roots)
		}
	}
	m.mu.Unlock()
	errs := []error{m.storeBundles(bundles)}
	// On a read-only file system, Remove fails even if the file does not exist.
	if _, err := os.Lstat(stale); err == nil {
		if err := os.Remove(stale); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove the stored certificate: %w", err))
		}
	}
	if pair == nil || pair.source == fromSpire || roots == nil {
		return errors.Join(errs...)
	}
	if output != nil {
		errs = append(errs, output.Write(pair.pair, roots.roots))
	}
	now := stored{pair, sealed}
	if sealed != nil && last != now && pair.issuer == issuer { // issued by the current authority
		issued := &IssuedCertificate{Pair: pair.pair, Roots: pair.roots, Obtained: pair.obtained}
		err := sealed.Save(issued)
		if err == nil {
			m.mu.Lock()
			m.sealed = now
			m.mu.Unlock()
			m.options.Conditions.Clear(CodeNotRestored)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// restore returns the certificate that an earlier run sealed, nil if there is none.
func (m *Manager) restore(settings Settings) *material {
	if settings.Sealed == nil || settings.Issuer == nil {
		return nil
	}
	last, err := settings.Sealed.Load()
	if err != nil {
		m.options.Conditions.Raise(CodeNotRestored, condition.Warning,
			"cannot use the certificate of an earlier run: "+err.Error())
	}
	if last == nil {
		return nil
	}
	return &material{
		pair: last.Pair, roots: last.Roots, source: fromCache,
		obtained: last.Obtained, renewal: last.Obtained, issuer: settings.Issuer,
	}
}

// storeBundles writes the roots (PEM) of SPIFFE bundles, by URL.
func (m *Manager) storeBundles(bundles map[string][]byte) error {
	if m.options.BundleFile == "" {
		return nil
	}
	text, err := json.Marshal(bundles)
	before, _ := os.ReadFile(m.options.BundleFile) // nil after an error: the file is then written
	if err == nil && !bytes.Equal(before, text) && (len(bundles) > 0 || before != nil) {
		err = renameio.WriteFile(m.options.BundleFile, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot store the roots of SPIFFE bundles: %w", err)
	}
	return nil
}

// restoreBundles returns the valid roots that an earlier run stored, by URL.
func (m *Manager) restoreBundles() map[string][]*x509.Certificate {
	var stored map[string][]byte
	text, err := os.ReadFile(m.options.BundleFile)
	if err == nil {
		err = json.Unmarshal(text, &stored)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.options.Logger.Warn("cannot use the stored roots of SPIFFE bundles", "error", err)
	}
	restored := map[string][]*x509.Certificate{}
	for url, text := range stored {
		in := pki.PEMInput{File: m.options.BundleFile, PEM: text}
		// ParseRoots fails if all roots have expired.
		if roots, err := pki.ParseRoots(in, m.options.Now()); err == nil {
			restored[url] = roots
		}
	}
	return restored
}
