package ca

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/readfile"
)

const (
	maxFileBytes = 1 << 20
	// time between NotBefore of a certificate and its issue, as in istiod, for hosts whose clocks
	// are behind
	clockTolerance = 2 * time.Minute
	serialBits     = 128
)

// authority is a signing certificate with its private key and chain. It is immutable.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	notAfter    time.Time // earliest expiry of the certificates in the chain
	roots       []*x509.Certificate
	issuers     []*x509.Certificate // the roots that issued the chain
	// intermediates as PEM, which clients need in addition to the roots; "": none
	chain  string
	bundle string // roots as PEM
}

// readAuthority reads the files of [ca]. It checks that they belong together and are valid at the
// time now.
func readAuthority(s Settings, now time.Time) (*authority, error) {
	read := func(path string) (pki.PEMInput, error) {
		text, err := readfile.Read(path, maxFileBytes)
		return pki.PEMInput{File: path, PEM: text}, err
	}
	certificate, err := read(s.CertFile)
	if err != nil {
		return nil, err
	}
	key, err := read(s.KeyFile)
	if err != nil {
		return nil, err
	}
	pair, err := pki.ParsePair(certificate, key, pki.UsageAuthority)
	if err != nil {
		return nil, err
	}
	if err := pair.CheckTime(now); err != nil {
		return nil, err
	}
	var intermediates, roots []*x509.Certificate
	for _, c := range pair.Chain {
		if bytes.Equal(c.RawIssuer, c.RawSubject) {
			roots = append(roots, c)
		} else {
			intermediates = append(intermediates, c)
		}
	}
	if s.RootFile != "" {
		text, err := read(s.RootFile)
		if err != nil {
			return nil, err
		}
		if roots, err = pki.ParseRoots(text, now); err != nil {
			return nil, err
		}
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("%s is an intermediate certificate; set [ca] root_file", s.CertFile)
	}
	loaded, err := tls.X509KeyPair(pair.ChainPEM, pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.CertFile, err)
	}
	signer, ok := loaded.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the key in %s cannot sign", s.KeyFile)
	}
	var issuers []*x509.Certificate
	for _, root := range roots {
		if pair.IssuedBy([]*x509.Certificate{root}) {
			issuers = append(issuers, root)
		}
	}
	if len(issuers) == 0 {
		return nil, fmt.Errorf("%s was not issued by a root in %s; add its root there", s.CertFile,
			s.RootFile)
	}
	return &authority{certificate: pair.Leaf(), key: signer, notAfter: pair.NotAfter(),
		roots: roots, issuers: issuers, chain: string(pki.EncodeCertificates(intermediates)),
		bundle: string(pki.EncodeCertificates(roots))}, nil
}

// equal reports whether two authorities sign with the same certificate and return the same chain
// and roots.
func (a *authority) equal(b *authority) bool {
	return a.certificate.Equal(b.certificate) && a.chain == b.chain && a.bundle == b.bundle
}

// issued is a newly issued certificate with its chain.
type issued struct {
	serial   *big.Int
	notAfter time.Time
	chain    []string // as PEM: the certificate, the intermediates if there are any, the roots
}

var errExpired = errors.New("the signing certificate has expired")

// sign issues a certificate for a SPIFFE ID. It is valid for ttl, but not beyond the expiry of the
// authority's chain.
func (a *authority) sign(public crypto.PublicKey, id string, now time.Time, ttl time.Duration) (
	*issued, error) {
	uri, err := url.Parse(id)
	if err != nil {
		return nil, err
	}
	notAfter := now.Add(ttl)
	if a.notAfter.Before(notAfter) {
		notAfter = a.notAfter
	}
	if !now.Before(notAfter) {
		return nil, errExpired
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: serial, URIs: []*url.URL{uri},
		NotBefore: now.Add(-clockTolerance), NotAfter: notAfter, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
	if err != nil {
		return nil, err
	}
	result := &issued{serial: serial, notAfter: notAfter,
		chain: []string{string(pki.EncodeCertificates([]*x509.Certificate{{Raw: der}}))}}
	if a.chain != "" {
		result.chain = append(result.chain, a.chain)
	}
	result.chain = append(result.chain, a.bundle)
	return result, nil
}
