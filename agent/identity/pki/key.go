// Package pki generates keys and certificate requests, and parses and checks what files and
// authorities provide: key pairs, root certificates and JSON Web Tokens. It performs no I/O.
//
// A finding is a [Problem]: it names the file and the fix, and errors.Is identifies its kind
// ([ErrMismatch], [ErrExpired], …). No message contains key material or a token.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
)

// KeyType is a value of [identity] key_type.
type KeyType string

// The key types.
const (
	ECDSAP256 KeyType = "ecdsa-p256"
	ECDSAP384 KeyType = "ecdsa-p384"
	RSA2048   KeyType = "rsa-2048"
	RSA3072   KeyType = "rsa-3072"
	RSA4096   KeyType = "rsa-4096"
)

// GenerateKey returns a new private key. The empty type is ECDSAP256.
func GenerateKey(kind KeyType) (crypto.Signer, error) {
	switch kind {
	case ECDSAP256, "":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	}
	return nil, fmt.Errorf("unknown key type %q", kind)
}

// EncodeKey returns a private key as PEM: PKCS#8, or the traditional format of its algorithm
// (SEC 1, PKCS#1).
func EncodeKey(key crypto.Signer, pkcs8 bool) ([]byte, error) {
	var block pem.Block
	var err error
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		block.Type = "EC PRIVATE KEY"
		if !pkcs8 {
			block.Bytes, err = x509.MarshalECPrivateKey(k)
		}
	case *rsa.PrivateKey:
		block.Type = "RSA PRIVATE KEY"
		if !pkcs8 {
			block.Bytes = x509.MarshalPKCS1PrivateKey(k)
		}
	default:
		return nil, fmt.Errorf("cannot encode a key of type %T", key)
	}
	if pkcs8 {
		block.Type = "PRIVATE KEY"
		block.Bytes, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&block), nil
}

// SpiffeID returns the SPIFFE ID of a workload, as Istio defines it.
func SpiffeID(trustDomain, namespace, serviceAccount string) string {
	return (&url.URL{
		Scheme: "spiffe", Host: trustDomain,
		Path: "/ns/" + namespace + "/sa/" + serviceAccount,
	}).String()
}

// NewCertificateRequest returns a certificate signing request for a SPIFFE ID as PEM, signed with
// key.
func NewCertificateRequest(key crypto.Signer, spiffeID string) ([]byte, error) {
	id, err := url.Parse(spiffeID)
	if err != nil {
		return nil, fmt.Errorf("invalid SPIFFE ID: %w", err)
	}
	template := &x509.CertificateRequest{URIs: []*url.URL{id}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
