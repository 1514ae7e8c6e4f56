package pki_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
)

// FuzzPair parses arbitrary bytes as certificates, key, roots and revocation lists. It checks that
// crypto/tls can use what is accepted, and that errors do not quote the key.
func FuzzPair(f *testing.F) {
	root := pkitest.NewAuthority(f, "root", nil)
	middle := pkitest.NewAuthority(f, "middle", root)
	chain, key := middle.Issue(f, pkitest.LeafTemplate("web", time.Hour))
	f.Add(chain, key)
	f.Add(append(pkitest.PEM(root.Certificate), chain...), key)
	f.Add(chain[:len(chain)/2], key[len(key)/2:])
	f.Add([]byte("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"),
		[]byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
		[]byte("-----BEGIN EC PRIVATE KEY-----\nDEK-Info: a\n\nAAAA\n-----END EC PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, chain, key []byte) {
		now := time.Now()
		pair, err := parsePair(chain, key, pki.UsageEither)
		if err != nil {
			body := strings.Join(strings.Split(string(key), "\n")[1:], "")
			if len(body) > 20 && strings.Contains(err.Error(), body) {
				t.Errorf("the error has the key: %v", err)
			}
		} else {
			if _, err := tls.X509KeyPair(pair.ChainPEM, pair.KeyPEM); err != nil {
				t.Errorf("accepted, and not usable: %v", err)
			}
			if again, err := parsePair(pair.ChainPEM, pair.KeyPEM, pki.UsageEither); err != nil ||
				!again.Leaf().Equal(pair.Leaf()) {
				t.Errorf("refused once encoded: %v", err)
			}
			_ = pair.CheckTime(now)
			_, _ = pair.SpiffeID(), pair.NotAfter()
		}
		in := pki.PEMInput{File: "r", PEM: chain}
		if roots, err := pki.ParseRoots(in, now); err == nil && len(roots) == 0 {
			t.Error("no roots, and no error")
		}
		if lists, err := pki.ParseRevocations(in); err == nil && len(lists) == 0 {
			t.Error("no revocation lists, and no error")
		}
	})
}
