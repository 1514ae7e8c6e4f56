package mesh

import (
	"slices"
	"strings"
)

const spiffe = "spiffe://"

// ServiceAccountID returns the SPIFFE ID of a service account.
func (m *Config) ServiceAccountID(namespace, account string) string {
	return spiffe + m.TrustDomain + "/ns/" + namespace + "/sa/" + account
}

// AcceptedSANs returns the subject alternative names to accept for names: the names, and for
// SPIFFE IDs of service accounts also those in the aliases of the trust domain. The result is
// sorted and without duplicates.
func (m *Config) AcceptedSANs(names []string) []string {
	peers := slices.Clone(names)
	for _, name := range names {
		domain, rest, ok := strings.Cut(strings.TrimPrefix(name, spiffe), "/")
		if !strings.HasPrefix(name, spiffe) || !ok || domain == "" {
			continue
		}
		if parts := strings.Split(rest, "/"); len(parts) != 4 || parts[0] != "ns" ||
			parts[2] != "sa" {
			continue
		}
		for _, alias := range m.TrustDomainAliases {
			peers = append(peers, spiffe+alias+"/"+rest)
		}
	}
	slices.Sort(peers)
	return slices.Compact(peers)
}

// TrustDomainWithAliases returns the mesh's trust domain, followed by its aliases, which are
// equivalent.
func (m *Config) TrustDomainWithAliases() []string {
	return slices.Concat([]string{m.TrustDomain}, m.TrustDomainAliases)
}

// AcceptedSPIFFEPrefixes returns the prefixes of SPIFFE IDs that servers accept: those of the
// mesh's trust domain, of its aliases, and of the domains of additional authorities.
func (m *Config) AcceptedSPIFFEPrefixes() []string {
	var prefixes []string
	for _, domain := range slices.Concat([]string{m.TrustDomain}, m.TrustDomainAliases,
		m.OtherTrustDomains) {
		if prefix := spiffe + domain + "/"; !slices.Contains(prefixes, prefix) {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}
