package model

import "slices"

// cipherSuites are those that a Gateway may name, as Istio has them: all of BoringSSL's without
// pre-shared keys.
var cipherSuites = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
	"ECDHE-RSA-AES256-GCM-SHA384",
	"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA",
	"ECDHE-RSA-AES128-SHA",
	"ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256", "AES256-GCM-SHA384",
	"AES128-SHA", "AES256-SHA", "DES-CBC3-SHA",
}

// curves are those of Istio's list that Envoy takes: with another (P-224, X25519Kyber768Draft00) it
// refuses every listener.
var curves = []string{"P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"}

// IsCurve tells whether a text can stand in MeshConfig's list of curves.
func IsCurve(name string) bool { return slices.Contains(curves, name) }

// Curves are the names that count: those that can stand, each once.
func Curves(names []string) []string { return known(names, IsCurve) }

// IsCipherSuite tells whether a text can stand in a list of cipher suites. Expressions with an
// operator ([A|B], -C) are left to Envoy.
func IsCipherSuite(name string) bool {
	if name == "" || name == "ALL" {
		return true
	}
	first := name[0]
	letter := first >= '0' && first <= '9' || first >= 'A' && first <= 'Z' || first >= 'a' &&
		first <= 'z'
	return !letter || slices.Contains(cipherSuites, name)
}

// CipherSuites are the names that count: those that can stand, each once.
func CipherSuites(names []string) []string { return known(names, IsCipherSuite) }

func known(names []string, is func(string) bool) []string {
	var out []string
	for _, name := range names {
		if is(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
