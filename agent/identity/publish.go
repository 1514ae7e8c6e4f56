package identity

import (
	"cmp"
	"crypto/x509"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/resource"
)

// version returns the material to publish for a secret, or nil. It adds the roots of the mesh
// configuration and of SPIFFE bundles to those of ROOTCA. Callers hold mu.
func (m *Manager) version(name string) *material {
	e := m.entries[name]
	if e == nil {
		return nil
	}
	if name != RootCASecret || e.current == nil || e.current.source == fromSpire {
		return e.current
	}
	merged := *e.current
	merged.roots = m.withBundles(merged.roots, true)
	return &merged
}

// withBundles returns roots and those of SetTrustBundle, with spiffe also those of SPIFFE bundles.
// Callers hold mu.
func (m *Manager) withBundles(roots []*x509.Certificate, spiffe bool) []*x509.Certificate {
	for _, from := range slices.Sorted(maps.Keys(m.bundles)) {
		if spiffe || m.fetchers[from] == nil {
			roots = pki.MergeRoots(roots, m.bundles[from])
		}
	}
	return roots
}

// absent is the value of Manager.published for secrets that were published as absent.
const absent = "absent"

// publish updates the feed with the secrets that have changed. Secrets in missing that have no
// version are published as absent. Callers hold mu.
func (m *Manager) publish(missing map[string]bool) {
	var change resource.Change
	replaced := map[string]bool{} // secrets to announce; true: there was an earlier version
	for name, before := range m.published {
		if m.version(name) == nil && (before != absent || !missing[name]) {
			change.Remove = append(change.Remove, keyOf(name))
			delete(m.published, name)
		}
	}
	for name, e := range m.entries {
		version := m.version(name)
		if version != nil && version == e.served {
			continue
		}
		if version == nil {
			if missing[name] && m.published[name] == "" {
				change.KnownAbsent = append(change.KnownAbsent, keyOf(name))
				m.published[name] = absent
			}
			continue
		}
		if version.source == fromSpire { // Envoy has the secret from SPIRE: announce it only
			if e.served == nil || !e.served.same(version) {
				replaced[name] = e.served != nil
			}
			e.served = version
			continue
		}
		encoded, err := encode(name, version)
		if err != nil {
			m.options.Logger.Error("cannot encode secret", "resource", name, "error", err)
			continue
		}
		e.served = version
		before := m.published[name]
		if before == encoded.Version {
			continue
		}
		change.Set = append(change.Set, encoded)
		replaced[name] = before != "" && before != absent
		m.published[name] = encoded.Version
	}
	if len(change.Set)+len(change.Remove)+len(change.KnownAbsent) > 0 {
		m.feed.Publish(change)
		runtime.Gosched() // lets xDS streams send the version before it is logged
	}
	for _, name := range slices.Sorted(maps.Keys(replaced)) {
		m.announce(name, m.version(name), replaced[name])
	}
}

func keyOf(name string) resource.Key {
	return resource.Key{Type: resource.SecretType, Name: name}
}

// announce logs a new version, and publishes an event if it replaces one.
func (m *Manager) announce(name string, version *material, replaces bool) {
	about := version.info(name)
	message := "certificate obtained"
	if replaces {
		message = "certificate replaced"
		m.stats.Renewals[name]++
		m.options.Conditions.Publish(condition.Event{
			Kind:     condition.KindSecretRotated,
			Sentence: "certificate replaced: " + name,
			Fields: map[string]string{
				"resource": name, "not_after": about.NotAfter.UTC().Format(time.RFC3339),
			},
		})
	}
	m.options.Logger.Info(message, "resource", name, "source", about.Source,
		"identity", cmp.Or(about.SpiffeID, about.Subject, strings.Join(about.Names, ", ")),
		"not_after", about.NotAfter)
}

// encode returns a secret as Envoy receives it.
func encode(name string, version *material) (*resource.Resource, error) {
	secret := &tlsv3.Secret{Name: name}
	if version.pair != nil {
		secret.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(version.pair.ChainPEM),
			PrivateKey:       inline(version.pair.KeyPEM),
		}}
	} else {
		secret.Type = &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inline(pki.EncodeCertificates(version.roots)),
			},
		}
		if version.revoked != nil {
			secret.GetValidationContext().Crl = inline(version.revoked)
		}
	}
	return resource.New(name, secret)
}

func inline(text []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
}
