package model

import "slices"

// cipherSuites lists the cipher suites that a Gateway may name, as in Istio: those of BoringSSL
// without pre-shared keys.
var cipherSuites = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
	"ECDHE-RSA-AES256-GCM-SHA384",
	"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA",
	"ECDHE-RSA-AES128-SHA",
	"ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256", "AES256-GCM-SHA384",
	"AES128-SHA", "AES256-SHA", "DES-CBC3-SHA",
}

// curves lists the curves of Istio that Envoy supports. Envoy refuses every listener with another
// one (P-224, X25519Kyber768Draft00).
var curves = []string{"P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"}

// IsECDHCurve reports whether Envoy supports a curve of MeshConfig's ecdhCurves.
func IsECDHCurve(name string) bool { return slices.Contains(curves, name) }

// SupportedECDHCurves returns those of the names that are supported curves, without duplicates.
func SupportedECDHCurves(names []string) []string { return known(names, IsECDHCurve) }

// IsCipherSuite reports whether name is a supported cipher suite. Expressions with an operator
// ([A|B], -C) are not checked; Envoy validates them.
func IsCipherSuite(name string) bool {
	if name == "" || name == "ALL" {
		return true
	}
	first := name[0]
	letter := first >= '0' && first <= '9' || first >= 'A' && first <= 'Z' || first >= 'a' &&
		first <= 'z'
	return !letter || slices.Contains(cipherSuites, name)
}

// SupportedCipherSuites returns those of the names that are supported cipher suites, without
// duplicates.
func SupportedCipherSuites(names []string) []string { return known(names, IsCipherSuite) }

func known(names []string, is func(string) bool) []string {
	var out []string
	for _, name := range names {
		if is(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
