package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
)

func parsePair(chain, key []byte, usage pki.Usage) (*pki.Pair, error) {
	return pki.ParsePair(pki.PEMInput{File: "c", PEM: chain}, pki.PEMInput{File: "k", PEM: key},
		usage)
}

func TestKeys_AreGeneratedEncodedAndParsed(t *testing.T) {
	authority := pkitest.NewAuthority(t, "root", nil)
	for _, kind := range []pki.KeyType{"", pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048, pki.RSA3072} {
		for _, pkcs8 := range []bool{false, true} {
			key, err := pki.GenerateKey(kind)
			if err != nil {
				t.Fatal(err)
			}
			text, err := pki.EncodeKey(key, pkcs8)
			if err != nil {
				t.Fatal(err)
			}
			if got := bytes.Contains(text, []byte("BEGIN PRIVATE KEY")); got != pkcs8 {
				t.Errorf("%s: PKCS#8: %v, want %v", kind, got, pkcs8)
			}
			leaf := authority.Sign(t, pkitest.LeafTemplate("web", time.Hour), key.Public())
			pair, err := parsePair(pkitest.PEM(leaf), text, pki.UsageBoth)
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			id := pki.SpiffeID("cluster.local", "default", "web")
			if !bytes.Equal(pair.KeyPEM, text) || pair.SpiffeID() != id {
				t.Errorf("%s: key %.30s, identity %s", kind, pair.KeyPEM, pair.SpiffeID())
			}
		}
	}
	if _, err := pki.GenerateKey("dsa"); err == nil {
		t.Error("an unknown key type is accepted")
	}
	if _, err := pki.EncodeKey(ed25519.PrivateKey{}, true); err == nil {
		t.Error("a key that Envoy cannot use is encoded")
	}
}

func TestRequest_NamesTheSpiffeID(t *testing.T) {
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	id := pki.SpiffeID("example.org", "shop", "cart")
	text, err := pki.NewCertificateRequest(key, id)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || request.CheckSignature() != nil {
		t.Fatalf("request: %v, signature: %v", err, request.CheckSignature())
	}
	const want = "spiffe://example.org/ns/shop/sa/cart"
	if len(request.URIs) != 1 || request.URIs[0].String() != want {
		t.Errorf("SANs %v, want %s", request.URIs, want)
	}
	if _, err := pki.NewCertificateRequest(key, "spiffe://\x00"); err == nil {
		t.Error("an invalid SPIFFE ID is accepted")
	}
}

// finding is a case of TestPair_Findings.
type finding struct {
	name   string
	kind   error
	detail string // part of the message
	usage  pki.Usage
	chain  []*x509.Certificate
	key    any
}

// selfSignedTemplate returns a certificate like those that "openssl req -x509" creates without
// further options.
func selfSignedTemplate() *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: "www.example.com"}, IsCA: true,
		BasicConstraintsValid: true, DNSNames: []string{"www.example.com"},
		NotAfter: time.Now().Add(time.Hour)}
}

func findings(t *testing.T) []finding {
	root := pkitest.NewAuthority(t, "root", nil)
	middle := pkitest.NewAuthority(t, "middle", root)
	key, other := pkitest.NewKey(t), pkitest.NewKey(t)
	sign := func(change func(*x509.Certificate)) *x509.Certificate {
		template := pkitest.LeafTemplate("web", time.Hour)
		change(template)
		return middle.Sign(t, template, key.Public())
	}
	good := sign(func(*x509.Certificate) {})
	short, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // the case
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	only := func(uses ...x509.ExtKeyUsage) *x509.Certificate {
		return sign(func(c *x509.Certificate) { c.ExtKeyUsage = uses })
	}
	one := func(c *x509.Certificate) []*x509.Certificate { return []*x509.Certificate{c} }
	selfSigned := (&pkitest.Authority{Certificate: selfSignedTemplate(), Key: key}).Sign(t,
		selfSignedTemplate(), key.Public())
	server, client := only(x509.ExtKeyUsageServerAuth), only(x509.ExtKeyUsageClientAuth)
	return []finding{
		{"good", nil, "", pki.UsageBoth,
			[]*x509.Certificate{good, middle.Certificate, root.Certificate}, key},
		{"no usage named", nil, "", pki.UsageBoth, one(only()), key},
		{"server only, for a gateway", nil, "", pki.UsageEither, one(server), key},
		{"other key", pki.ErrMismatch, "k: the private key is not that of the certificate in c",
			pki.UsageBoth, one(good), other},
		{"long chain", pki.ErrChainOrder, "the chain has 17 certificates, more than 16",
			pki.UsageBoth,
			append(one(good), slices.Repeat(one(middle.Certificate), 16)...), key},
		{"key that takes long to verify with", pki.ErrWeakKey, "an RSA key of more than 8192 bits",
			pki.UsageBoth, []*x509.Certificate{good, middle.Certificate, root.Sign(t,
				pkitest.LeafTemplate("large", time.Hour), &rsa.PublicKey{E: 65537,
					N: new(big.Int).SetBit(big.NewInt(1), 9000, 1)})}, key},
		{"leaf last", pki.ErrChainOrder, "the key belongs to certificate 2", pki.UsageBoth,
			[]*x509.Certificate{middle.Certificate, good}, key},
		{"intermediate missing", pki.ErrChainOrder,
			"the certificate of O=root did not issue any other",
			pki.UsageBoth, []*x509.Certificate{good, root.Certificate}, key},
		{"server only", pki.ErrKeyUsage, "does not allow TLS clients", pki.UsageBoth, one(server),
			key},
		{"client only", pki.ErrKeyUsage, "does not allow TLS servers", pki.UsageBoth, one(client),
			key},
		{"neither", pki.ErrKeyUsage, "neither TLS servers nor clients", pki.UsageEither,
			one(only(x509.ExtKeyUsageCodeSigning)), key},
		{"no signatures", pki.ErrKeyUsage, "no digital signature", pki.UsageBoth,
			one(sign(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })), key},
		{"as openssl req -x509 makes it, for a gateway", nil, "", pki.UsageEither, one(selfSigned),
			key},
		{"as openssl req -x509 makes it", pki.ErrKeyUsage, "that of an authority", pki.UsageBoth,
			one(selfSigned), key},
		{"an authority, for a gateway", pki.ErrKeyUsage, "that of an authority", pki.UsageEither,
			one(middle.Certificate), middle.Key},
		{"an authority", pki.ErrKeyUsage, "that of an authority", pki.UsageBoth,
			one(middle.Certificate),
			middle.Key},
		{"SHA-1", pki.ErrWeakKey, "signature by ECDSA-SHA1", pki.UsageBoth,
			[]*x509.Certificate{sign(
				func(c *x509.Certificate) { c.SignatureAlgorithm = x509.ECDSAWithSHA1 }),
				middle.Certificate}, key},
		{"short RSA key", pki.ErrWeakKey, "short RSA key", pki.UsageBoth,
			one(middle.Sign(t, pkitest.LeafTemplate("web", time.Hour), short.Public())), short},
		{"short curve", pki.ErrWeakKey, "short elliptic curve", pki.UsageBoth,
			one(middle.Sign(t, pkitest.LeafTemplate("web", time.Hour), curve.Public())), curve},
	}
}

func TestPair_ChainIsServedInOrder(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	middle := pkitest.NewAuthority(t, "middle", root)
	key := pkitest.NewKey(t)
	leaf := middle.Sign(t, pkitest.LeafTemplate("web", time.Hour), key.Public())
	ordered := pkitest.PEM(leaf, middle.Certificate, root.Certificate)
	for _, chain := range [][]byte{
		ordered, pkitest.PEM(leaf, root.Certificate, middle.Certificate),
	} {
		pair, err := parsePair(chain, pkitest.KeyPEM(t, key), pki.UsageBoth)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(pair.ChainPEM, ordered) {
			t.Errorf("served:\n%s", pair.ChainPEM)
		}
	}
}

func TestPair_Findings(t *testing.T) {
	for _, c := range findings(t) {
		t.Run(c.name, func(t *testing.T) {
			_, err := parsePair(pkitest.PEM(c.chain...), pkitest.KeyPEM(t, c.key), c.usage)
			if !errors.Is(err, c.kind) {
				t.Fatalf("error %v, want %v", err, c.kind)
			}
			if err != nil && !strings.Contains(err.Error(), c.detail) {
				t.Errorf("message %q lacks %q", err, c.detail)
			}
		})
	}
}

func TestPair_CheckTime(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	pair, err := parsePair(chain, key, pki.UsageBoth)
	if err != nil {
		t.Fatal(err)
	}
	for now, want := range map[time.Duration]error{
		0: nil, 2 * time.Hour: pki.ErrExpired, -2 * time.Hour: pki.ErrNotYetValid,
	} {
		if err := pair.CheckTime(time.Now().Add(now)); !errors.Is(err, want) {
			t.Errorf("%v from now: %v, want %v", now, err, want)
		}
	}
}

func TestPair_MalformedFiles(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	both := slices.Concat(chain, key)
	if pair, err := parsePair(both, both, pki.UsageBoth); err != nil ||
		!bytes.Equal(pair.ChainPEM, chain) || !bytes.Equal(pair.KeyPEM, key) {
		t.Errorf("one file with both: %v", err)
	}
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte{1}})
	garbage := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})
	for name, c := range map[string]struct {
		chain, key []byte
		kind       error
	}{
		"empty certificate": {nil, key, pki.ErrNotPEM},
		"garbage":           {garbage, key, pki.ErrNotPEM},
		"empty key":         {chain, nil, pki.ErrNoKey},
		"exchanged":         {key, chain, pki.ErrNotPEM},
		"encrypted key":     {chain, encrypted, pki.ErrNoKey},
		"key cut off":       {chain, key[:len(key)-10], pki.ErrNotPEM},
	} {
		if _, err := parsePair(c.chain, c.key, pki.UsageBoth); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
	// without the last byte, a line feed, the file is still complete
	for cut := 1; cut < len(chain)-1; cut++ {
		if _, err := parsePair(chain[:cut], key, pki.UsageBoth); err == nil {
			t.Fatalf("a certificate cut off after %d of %d bytes is accepted", cut, len(chain))
		}
	}
}

func TestRoots(t *testing.T) {
	old, current := pkitest.NewAuthority(t, "old", nil), pkitest.NewAuthority(t, "current", nil)
	parse := func(now time.Time, roots ...*x509.Certificate) ([]*x509.Certificate, error) {
		return pki.ParseRoots(pki.PEMInput{File: "r", PEM: pkitest.PEM(roots...)}, now)
	}
	both, err := parse(time.Now(), old.Certificate, current.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	merged := pki.MergeRoots(both[1:], both, nil)
	if len(merged) != 2 || !merged[0].Equal(current.Certificate) {
		t.Errorf("merged %d roots", len(merged))
	}
	later := time.Now().Add(1000 * time.Hour)
	if _, err := parse(later, old.Certificate); !errors.Is(err, pki.ErrExpired) {
		t.Errorf("expired roots: %v", err)
	}
	if _, err := parse(time.Now()); !errors.Is(err, pki.ErrNotPEM) {
		t.Errorf("no roots: %v", err)
	}
}
