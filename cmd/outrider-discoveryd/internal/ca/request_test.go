package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"strings"
	"testing"

	"outrider.org/outrider/agent/identity/pki"
)

const ownID = "spiffe://cluster.local/ns/default/sa/web"

// request returns a certificate signing request (PEM) to which change was applied.
func request(t testing.TB, key crypto.Signer, change func(*x509.CertificateRequest)) string {
	t.Helper()
	uri, err := url.Parse(ownID)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{URIs: []*url.URL{uri}}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func key(t testing.TB, kind pki.KeyType) crypto.Signer {
	t.Helper()
	made, err := pki.GenerateKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// names returns an X.509 extension with subject alternative names.
func names(t *testing.T, all ...asn1.RawValue) pkix.Extension {
	t.Helper()
	value, err := asn1.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: subjectAltName, Value: value}
}

func name(tag int, text string) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(text)}
}

func TestPublicKey(t *testing.T) {
	own := key(t, pki.ECDSAP256)
	small, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // the case
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := request(t, own, nil)
	block, _ := pem.Decode([]byte(good))
	forged := append([]byte(nil), block.Bytes...)
	forged[len(forged)-1] ^= 1
	inPEM := func(der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	}
	with := func(extension ...pkix.Extension) string {
		return request(t, own, func(r *x509.CertificateRequest) {
			r.URIs, r.ExtraExtensions = nil, extension
		})
	}
	for _, c := range []struct{ name, text, want string }{
		{"P-256", good, ""},
		{"P-384", request(t, key(t, pki.ECDSAP384), nil), ""},
		{"RSA", request(t, key(t, pki.RSA2048), nil), ""},
		{"old type of the block", strings.ReplaceAll(good, "CERTIFICATE REQ", "NEW CERTIFICATE REQ"),
			""},
		{"as pilot-agent encodes it", with(names(t, name(6, ownID))), ""},
		{"with a subject", request(t, own, func(r *x509.CertificateRequest) {
			r.Subject = pkix.Name{CommonName: "root"}
		}), ""},

		{"empty", "", "not a certificate request"},
		{"a key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"})), "not a certificate"},
		{"large", good + strings.Repeat("\n", maxRequestBytes), "more than 16384"},
		{"two", good + good, "followed by other data"},
		{"cut off", inPEM(block.Bytes[:100]), "cannot be parsed"},
		{"forged", inPEM(forged), "signature of the request is wrong"},
		{"RSA 1024", request(t, small, nil), "RSA key has 1024 bits"},
		{"P-224", request(t, p224, nil), "curve P-224"},
		{"Ed25519", request(t, edwards, nil), "must be RSA or ECDSA"},
		{"no name", with(), "0 names"},
		{"another identity", with(names(t, name(6, ownID+"x"))), "another identity"},
		{"prefix of another", with(names(t, name(6, ownID[:len(ownID)-1]))), "another identity"},
		{"two identities", with(names(t, name(6, ownID), name(6, ownID))), "2 names"},
		{"name of a rare type", with(names(t, name(6, ownID), name(8, "\x2a"))), "2 names"},
		{"identity as a host", with(names(t, name(2, ownID))), "1 names"},
		{"host", request(t, own, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.test"}
		}), `"a.test, ` + ownID},
		{"address", request(t, own, func(r *x509.CertificateRequest) {
			r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)}
		}), "2 names"},
		{"authority", with(names(t, name(6, ownID)), pkix.Extension{
			Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}),
			"has extension 2.5.29.19"},
	} {
		public, err := publicKey(c.text, ownID)
		switch {
		case c.want == "" && (err != nil || public == nil):
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzPublicKey(f *testing.F) {
	f.Add(request(f, key(f, pki.ECDSAP256), nil))
	f.Fuzz(func(t *testing.T, text string) {
		public, err := publicKey(text, ownID)
		if err == nil && checkKey(public) != nil {
			t.Errorf("%T is accepted", public)
		}
	})
}
