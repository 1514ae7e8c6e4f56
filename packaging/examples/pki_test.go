package examples

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/url"
	"testing"
	"time"
)

// authority is a CA for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, "test authority")
	return a
}

// sign issues a certificate; without a parent it is self-signed.
func (a *authority) sign(
	template *x509.Certificate, name string,
) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// pair is a certificate with its key for a DNS name, parsed and as PEM.
type pair struct {
	tls       tls.Certificate
	cert, key string
}

func (a *authority) issue(name string) pair {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{
		DNSNames:    []string{name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, name)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	p := pair{cert: pemOf("CERTIFICATE", cert.Raw), key: pemOf("PRIVATE KEY", encoded)}
	if p.tls, err = tls.X509KeyPair([]byte(p.cert), []byte(p.key)); err != nil {
		a.t.Fatal(err)
	}
	return p
}

func (a *authority) pem() string { return pemOf("CERTIFICATE", a.cert.Raw) }

// trust returns a client configuration that trusts the CA, with an optional client certificate.
func (a *authority) trust(name string, own ...tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, ServerName: name, Certificates: own}
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// quiet is the log of a server whose clients break connections on purpose.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
