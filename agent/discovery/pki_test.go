package discovery_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// clients writes two client certificates with their keys, signed by a CA. It returns the variables
// that test cases use: CLIENT, the path of a valid certificate, with its hashes SPKI and HASH;
// REVOKED, the path of a revoked one; and CRL, the path of the list that revokes it.
func clients(t testing.TB, authority, authorityKey string) map[string]string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(authority, authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	key := pair.PrivateKey.(*ecdsa.PrivateKey)
	directory := t.TempDir()
	variables := map[string]string{"CLIENT": filepath.Join(directory, "client.pem"),
		"REVOKED": filepath.Join(directory, "revoked.pem"), "CRL": filepath.Join(directory,
			"crl.pem")}
	client := issue(t, pair.Leaf, key, 2, "client", variables["CLIENT"])
	spki, hash := sha256.Sum256(client.RawSubjectPublicKeyInfo), sha256.Sum256(client.Raw)
	variables["SPKI"], variables["HASH"] = base64.StdEncoding.EncodeToString(spki[:]),
		hex.EncodeToString(hash[:])
	revoked := issue(t, pair.Leaf, key, 3, "revoked", variables["REVOKED"])
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1),
		ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: revoked.SerialNumber,
			RevocationTime: time.Now().Add(-time.Minute)}}}, pair.Leaf, key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, variables["CRL"], &pem.Block{Type: "X509 CRL", Bytes: list})
	return variables
}

// issue writes to one file a certificate for NAME.test and spiffe://cluster.local/NAME, and its
// key.
func issue(t testing.TB, authority *x509.Certificate, authorityKey *ecdsa.PrivateKey, serial int64,
	name, path string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial),
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".test"},
		URIs:      []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/" + name}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, &key.PublicKey,
		authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, path, &pem.Block{Type: "CERTIFICATE", Bytes: der}, &pem.Block{Type: "PRIVATE KEY",
		Bytes: encoded})
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func writePEM(t testing.TB, path string, blocks ...*pem.Block) {
	t.Helper()
	var content []byte
	for _, b := range blocks {
		content = append(content, pem.EncodeToMemory(b)...)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// clientTLS returns the TLS configuration of a request for a host. It removes two options from the
// headers: certificate, a file, and tls, the only version of TLS that the client supports.
func clientTLS(host string, headers http.Header) (*tls.Config, error) {
	config := &tls.Config{InsecureSkipVerify: true, ServerName: host}
	if path := headers.Get("certificate"); path != "" {
		pair, err := tls.LoadX509KeyPair(path, path)
		if err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate,
			error) {
			return &pair, nil
		}
	}
	if version := headers.Get("tls"); version != "" {
		versions := map[string]uint16{"1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11,
			"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
		config.MinVersion, config.MaxVersion = versions[version], versions[version]
	}
	if suite := headers.Get("cipher"); suite != "" {
		for _, known := range tls.CipherSuites() {
			if known.Name == suite {
				config.CipherSuites, config.MaxVersion = []uint16{known.ID}, tls.VersionTLS12
			}
		}
	}
	if protocol := headers.Get("alpn"); protocol != "" {
		config.NextProtos = []string{protocol, "http/1.1"}
	}
	for _, name := range []string{"certificate", "tls", "cipher", "alpn"} {
		headers.Del(name)
	}
	return config, nil
}
