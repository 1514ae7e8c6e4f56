package model

import (
	"cmp"
	"slices"
	"strings"
)

// FullName resolves a host as written in a VirtualService or DestinationRule: one without a dot is
// a service of the object's namespace.
func FullName(host, namespace, domain string) string {
	host = strings.ToLower(host)
	if host == "" || strings.ContainsAny(host, ".*:") {
		return host
	}
	return host + "." + namespace + ".svc." + domain
}

// IsWildcard tells a pattern of hosts from a host.
func IsWildcard(host string) bool { return strings.HasPrefix(host, "*") }

// Covers tells whether every host that b stands for is one that a stands for.
func Covers(a, b string) bool {
	if !IsWildcard(a) {
		return a == b
	}
	suffix := a[1:]
	return strings.HasSuffix(b, suffix) && len(b) > len(suffix) || a == b
}

// Narrower orders hosts by how much they say: exact ones first, then the longer pattern.
func Narrower(a, b string) int {
	if IsWildcard(a) != IsWildcard(b) {
		if IsWildcard(a) {
			return 1
		}
		return -1
	}
	return cmp.Compare(len(b), len(a))
}

// visible tells whether an object of a namespace that says exportTo (nothing: as the mesh says)
// counts for a proxy in another one.
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

// isPrivate tells whether an object of a namespace that says exportTo (nothing: as the mesh says)
// counts there alone.
func isPrivate(exportTo, mesh []string, own string) bool {
	if len(exportTo) == 0 {
		exportTo = mesh
	}
	return len(exportTo) == 1 && (exportTo[0] == "." || exportTo[0] == own)
}
