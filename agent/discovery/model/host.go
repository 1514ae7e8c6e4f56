package model

import (
	"cmp"
	"slices"
	"strings"
)

// FullName resolves a host as written in a VirtualService or DestinationRule. A host without a dot
// is a service in the object's namespace.
func FullName(host, namespace, domain string) string {
	host = strings.ToLower(host)
	if host == "" || strings.ContainsAny(host, ".*:") {
		return host
	}
	return host + "." + namespace + ".svc." + domain
}

// IsWildcard reports whether a host is a pattern.
func IsWildcard(host string) bool { return strings.HasPrefix(host, "*") }

// HostCovers reports whether the pattern a matches every host that b matches.
func HostCovers(a, b string) bool {
	if !IsWildcard(a) {
		return a == b
	}
	suffix := a[1:]
	return strings.HasSuffix(b, suffix) && len(b) > len(suffix) || a == b
}

// SplitHost splits NAMESPACE/HOST. For a HOST without a namespace, it returns the namespace "*",
// which stands for any namespace.
func SplitHost(text string) (namespace, host string, qualified bool) {
	if namespace, host, qualified = strings.Cut(text, "/"); !qualified {
		return "*", text, false
	}
	return namespace, host, true
}

// compareHosts orders hosts from specific to general: exact hosts, then patterns, longer patterns
// first. It returns a negative number if a comes before b.
func compareHosts(a, b string) int {
	if IsWildcard(a) != IsWildcard(b) {
		if IsWildcard(a) {
			return 1
		}
		return -1
	}
	return cmp.Compare(len(b), len(a))
}

// visible reports whether an object of the namespace own is visible to the namespace reader. An
// empty exportTo means the mesh's default.
func visible(exportTo, mesh []string, own, reader string) bool {
	if len(exportTo) == 0 {
		exportTo = mesh
	}
	if len(exportTo) == 0 {
		return true
	}
	if slices.Contains(exportTo, "~") {
		return false
	}
	for _, to := range exportTo {
		switch {
		case to == "*", to == reader, to == "." && own == reader:
			return true
		}
	}
	return false
}

// isPrivate reports whether an object is visible only in its own namespace. An empty exportTo means
// the mesh's default.
func isPrivate(exportTo, mesh []string, own string) bool {
	if len(exportTo) == 0 {
		exportTo = mesh
	}
	return len(exportTo) == 1 && (exportTo[0] == "." || exportTo[0] == own)
}
