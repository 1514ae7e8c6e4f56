package identity

import (
	"crypto/x509"
	"maps"
	"slices"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/identity/pki"
)

// SetPresented replaces the certificates that Envoy has from files that it reads itself, by the
// name of their secret, and the objects of the mesh configuration that use secrets ("FILE:LINE KIND
// NAMESPACE/NAME"). They are listed and have conditions like the other secrets, and are not served.
// Of more than maxRequested the rest is left out.
func (m *Manager) SetPresented(chains map[string][]*x509.Certificate, users map[string][]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.presented
	m.presented, m.users = map[string]*material{}, users
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if m.entries[name] != nil || len(m.presented) == maxRequested {
			continue // served by the agent
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

// label returns how sentences for people call a secret: by its file or its credential, with an
// object that uses it.
func (m *Manager) label(name string) string {
	label := DescribeSecret(name)
	if users := m.users[name]; len(users) > 0 {
		label += " (" + users[0] + ")"
	}
	return label
}

// DescribeSecret returns the description of a secret in sentences for people.
func DescribeSecret(name string) string {
	if short, ok := credential.SecretTitle(name); ok {
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
