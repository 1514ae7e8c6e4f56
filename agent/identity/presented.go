package identity

import (
	"crypto/x509"
	"maps"
	"slices"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/identity/pki"
)

// SetEnvoyFileCertificates replaces the list of certificates that Envoy reads from files itself
// (chains, by the name of the secret), and the objects of the mesh configuration that use each
// secret (users, as "FILE:LINE KIND NAMESPACE/NAME"). The certificates are listed and have
// conditions like other secrets, but the agent does not serve them. At most maxRequested are
// listed.
func (m *Manager) SetEnvoyFileCertificates(chains map[string][]*x509.Certificate,
	users map[string][]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.presented
	m.presented, m.users = map[string]*material{}, users
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if m.entries[name] != nil || len(m.presented) == maxRequested {
			continue // the agent serves the secret, or the list is full
		}
		chain := chains[name]
		version := &material{source: FromFiles, obtained: m.options.Now(),
			pair: &pki.Pair{Chain: chain, ChainPEM: pki.EncodeCertificates(chain)}}
		earlier := before[name]
		if earlier != nil && earlier.same(version) {
			version = earlier
		} else {
			m.announce(name, version, earlier != nil)
		}
		m.presented[name] = version
	}
	for name := range before {
		if m.presented[name] == nil && m.entries[name] == nil {
			m.removeCounters(name)
		}
	}
	m.update()
}

// label returns the description of a secret in messages: its file or credential, and one of the
// objects that use it.
func (m *Manager) label(name string) string {
	label := DescribeSecret(name)
	if users := m.users[name]; len(users) > 0 {
		label += " (" + users[0] + ")"
	}
	return label
}

// DescribeSecret returns the description of a secret in messages.
func DescribeSecret(name string) string {
	if short, ok := credential.DescribeSecret(name); ok {
		return short
	}
	if files, err := parseName(name); err == nil {
		return files.Cert + files.Root
	}
	return name
}

// fileOf returns the file with the certificate or the roots of a secret, "" if there is none.
// Callers hold mu.
func (m *Manager) fileOf(name string) string {
	var files SecretFiles
	if e := m.entries[name]; e != nil {
		files = e.definition.files
	} else {
		files, _ = parseName(name)
	}
	return files.Cert + files.Root
}
