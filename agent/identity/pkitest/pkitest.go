// Package pkitest issues certificates for tests.
package pkitest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// NewAuthority returns a root authority, or an intermediate signed by issuer if that is not nil.
func NewAuthority(t testing.TB, name string, issuer *Authority) *Authority {
	t.Helper()
	key := NewKey(t)
	template := &x509.Certificate{
		Subject: pkix.Name{Organization: []string{name}}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		NotAfter: time.Now().Add(240 * time.Hour),
	}
	a := &Authority{Key: key}
	if issuer == nil {
		issuer = &Authority{Certificate: template, Key: key}
	}
	a.Certificate = issuer.Sign(t, template, key.Public())
	return a
}

// Sign signs a certificate. Unless the template sets NotBefore, the certificate has been valid for
// an hour.
func (a *Authority) Sign(t testing.TB, template *x509.Certificate,
	public crypto.PublicKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, public, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// LeafTemplate returns a template of a workload's certificate with a lifetime.
func LeafTemplate(name string, lifetime time.Duration) *x509.Certificate {
	id := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/default/sa/" + name}
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, URIs: []*url.URL{id},
		DNSNames: []string{name + ".test"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotAfter:    time.Now().Add(lifetime),
	}
}

// Issue returns a chain and its key as PEM.
func (a *Authority) Issue(t testing.TB, template *x509.Certificate) (chain, key []byte) {
	t.Helper()
	signer := NewKey(t)
	return PEM(a.Sign(t, template, signer.Public())), KeyPEM(t, signer)
}

// NewKey returns an ECDSA key.
func NewKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// PEM encodes certificates.
func PEM(certificates ...*x509.Certificate) []byte {
	var all []byte
	for _, c := range certificates {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return all
}

// KeyPEM encodes a key (PKCS#8).
func KeyPEM(t testing.TB, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
