package rbac

import (
	"slices"
	"strings"
)

// localDomain in a principal stands for the mesh's own trust domain.
const localDomain = "cluster.local"

// aliases adds the equivalent principals in other trust domains. A principal
// DOMAIN/ns/NAMESPACE/sa/ACCOUNT whose domain is one of the mesh's is repeated for each of the
// mesh's domains.
func (t Translator) aliases(principals []string) []string {
	var all []string
	for _, principal := range principals {
		domain, rest, _ := strings.Cut(principal, "/")
		if strings.Count(rest, "/") != 3 || domain == "*" ||
			domain != localDomain && !slices.ContainsFunc(t.TrustDomains, func(own string) bool {
				return overlaps(own, domain)
			}) {
			all = append(all, principal)
			continue
		}
		var added []string
		for _, own := range t.TrustDomains {
			alias := own + "/" + rest
			if suffix, ok := strings.CutPrefix(domain, "*"); ok && strings.HasSuffix(own, suffix) {
				alias = principal // the wildcard of the principal already matches this domain
			}
			if !slices.Contains(added, alias) {
				added = append(added, alias)
			}
		}
		all = append(all, added...)
	}
	return all
}

// overlaps reports whether one of two texts matches the other. Either may begin or end with a
// wildcard.
func overlaps(a, b string) bool {
	covers := func(pattern, text string) bool {
		before, hasPrefix := strings.CutSuffix(pattern, "*")
		after, hasSuffix := strings.CutPrefix(pattern, "*")
		return hasPrefix && strings.HasPrefix(text, before) ||
			hasSuffix && strings.HasSuffix(text, after)
	}
	return a == b || covers(a, b) || covers(b, a)
}

// domains returns trust domains without duplicates. It replaces a domain of the mesh by all domains
// of the mesh, which are equivalent.
func (t Translator) domains(values []string) []string {
	var all []string
	add := func(domain string) {
		if !slices.Contains(all, domain) {
			all = append(all, domain)
		}
	}
	for _, value := range values {
		if !slices.Contains(t.TrustDomains, value) {
			add(value)
			continue
		}
		for _, domain := range t.TrustDomains {
			add(domain)
		}
	}
	return all
}
