package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"time"
)

// Limits of the size of RSA keys and of the number of certificates. The maxima bound the time to
// verify signatures.
const (
	minRSABits = 2048
	maxRSABits = 8192
	maxChain   = 16
	maxRoots   = 100
)

// Usage is the purpose for which a certificate must be valid.
type Usage int

// The usages.
const (
	UsageEither    Usage = iota // TLS servers or clients
	UsageBoth                   // TLS servers and clients, as the certificate of a workload
	UsageAuthority              // signing of certificates
)

// Pair is a certificate chain and its private key. It is immutable.
type Pair struct {
	Chain    []*x509.Certificate // the leaf first
	ChainPEM []byte
	KeyPEM   []byte

	certificate, key PEMInput
}

// ParsePair parses a certificate chain and its private key. It checks that the key belongs to the
// leaf, that the leaf comes first, that each further certificate issued another one of the chain,
// and that keys and signatures are strong enough.
func ParsePair(certificate, key PEMInput, usage Usage) (*Pair, error) {
	chain, err := certificate.certificates()
	if err != nil {
		return nil, err
	}
	signer, err := key.key()
	if err != nil {
		return nil, err
	}
	p := &Pair{Chain: chain, certificate: certificate, key: key}
	if !matches(signer, chain[0]) {
		return nil, p.mismatch(signer)
	}
	if err := p.checkSize(); err != nil {
		return nil, err
	}
	if err := p.checkChain(usage); err != nil {
		return nil, err
	}
	p.KeyPEM = keyBlock(key.PEM)
	return p, nil
}

// Leaf returns the certificate that belongs to the private key.
func (p *Pair) Leaf() *x509.Certificate { return p.Chain[0] }

// SpiffeID returns the first SPIFFE ID of the leaf, "" if it has none.
func (p *Pair) SpiffeID() string {
	for _, uri := range p.Leaf().URIs {
		if uri.Scheme == "spiffe" {
			return uri.String()
		}
	}
	return ""
}

// NotAfter returns the earliest time at which a certificate of the chain expires.
func (p *Pair) NotAfter() time.Time {
	earliest := p.Leaf().NotAfter
	for _, c := range p.Chain[1:] {
		if c.NotAfter.Before(earliest) {
			earliest = c.NotAfter
		}
	}
	return earliest
}

// CheckTime returns a Problem if the pair is not valid at now.
func (p *Pair) CheckTime(now time.Time) error {
	for _, c := range p.Chain {
		if now.After(c.NotAfter) {
			return p.certificate.problem(ErrExpired, "replace the certificate",
				"the certificate of %s expired on %s UTC", subject(c),
				c.NotAfter.UTC().Format(time.DateTime))
		}
		if now.Before(c.NotBefore) {
			return p.certificate.problem(ErrNotYetValid,
				"check the clock, or wait: the certificate is used once it is valid",
				"the certificate of %s is valid from %s UTC", subject(c),
				c.NotBefore.UTC().Format(time.DateTime))
		}
	}
	return nil
}

// mismatch returns the reason why the key does not belong to the leaf.
func (p *Pair) mismatch(key crypto.Signer) error {
	for i, c := range p.Chain {
		if i > 0 && matches(key, c) {
			return p.certificate.problem(ErrChainOrder, "write the certificate of the key first",
				"the key belongs to certificate %d of the chain", i+1)
		}
	}
	return p.key.problem(ErrMismatch, "replace both files",
		"the private key is not that of the certificate in %s", p.certificate.File)
}

// checkSize returns a Problem if the signatures of the chain may take long to verify.
func (p *Pair) checkSize() error {
	if len(p.Chain) > maxChain {
		return p.certificate.problem(ErrChainOrder,
			"write the certificate and those that issued it",
			"the chain has %d certificates, more than %d", len(p.Chain), maxChain)
	}
	for _, c := range p.Chain {
		if largeKey(c) {
			return p.certificate.problem(ErrWeakKey, "use ECDSA P-256 or RSA with 2048 bits",
				"the certificate of %s has an RSA key of more than %d bits", subject(c), maxRSABits)
		}
	}
	return nil
}

func largeKey(c *x509.Certificate) bool {
	key, ok := c.PublicKey.(*rsa.PublicKey)
	return ok && key.N.BitLen() > maxRSABits
}

// IssuedBy reports whether the chain ends in one of the first maxRoots roots: one of its
// certificates is a root, or was issued by one. It ignores validity times.
func (p *Pair) IssuedBy(roots []*x509.Certificate) bool {
	for _, root := range roots[:min(len(roots), maxRoots)] {
		if slices.ContainsFunc(p.Chain, func(c *x509.Certificate) bool {
			return c.Equal(root) || !largeKey(root) && issued(root, c)
		}) {
			return true
		}
	}
	return false
}

// sortChain puts the issuer of each certificate after it, as TLS 1.2 requires. Tools write chains
// in any order, and servers such as nginx serve them as they are.
func (p *Pair) sortChain() error {
	sorted, rest := p.Chain[:1:1], slices.Clone(p.Chain[1:])
	for i := 0; i < len(sorted); i++ {
		rest = slices.DeleteFunc(rest, func(c *x509.Certificate) bool {
			if !issued(c, sorted[i]) {
				return false
			}
			sorted = append(sorted, c)
			return true
		})
	}
	if len(rest) > 0 {
		return p.certificate.problem(ErrChainOrder,
			"add the missing intermediate certificate, or remove that certificate",
			"the certificate of %s did not issue any other of the chain", subject(rest[0]))
	}
	p.Chain, p.ChainPEM = sorted, EncodeCertificates(sorted)
	return nil
}

func (p *Pair) checkChain(usage Usage) error {
	leaf := p.Leaf()
	if usage == UsageAuthority {
		if !signsCertificates(leaf) {
			return p.certificate.problem(ErrKeyUsage, "name the certificate of an authority",
				"the certificate of %s may not sign certificates", subject(leaf))
		}
	} else if detail := unusable(leaf, usage); detail != "" {
		return p.certificate.problem(ErrKeyUsage, "issue a certificate for TLS servers and clients",
			"%s", detail)
	}
	if err := p.sortChain(); err != nil {
		return err
	}
	for _, c := range p.Chain {
		if detail := weakness(c); detail != "" {
			return p.certificate.problem(ErrWeakKey,
				"use ECDSA P-256 or RSA with 2048 bits or more, and SHA-256",
				"the certificate of %s has %s", subject(c), detail)
		}
	}
	return nil
}

// signsCertificates reports whether a certificate may sign certificates.
func signsCertificates(c *x509.Certificate) bool {
	return c.BasicConstraintsValid && c.IsCA &&
		(c.KeyUsage == 0 || c.KeyUsage&x509.KeyUsageCertSign != 0)
}

// unusable returns why a leaf cannot be used in TLS, "" if it can. With UsageEither, a self-signed
// certificate of an authority is allowed, because "openssl req -x509" creates such certificates for
// servers.
func unusable(leaf *x509.Certificate, usage Usage) string {
	selfSigned := bytes.Equal(leaf.RawIssuer, leaf.RawSubject)
	if leaf.IsCA && (usage != UsageEither || !selfSigned) {
		return "the certificate is that of an authority"
	}
	if leaf.KeyUsage != 0 && leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return "the certificate's key usage has no digital signature"
	}
	if len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) == 0 {
		return ""
	}
	has := func(use x509.ExtKeyUsage) bool {
		return slices.Contains(leaf.ExtKeyUsage, use) ||
			slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny)
	}
	server, client := has(x509.ExtKeyUsageServerAuth), has(x509.ExtKeyUsageClientAuth)
	switch {
	case !server && !client:
		return "the certificate's extended key usage allows neither TLS servers nor clients"
	case usage == UsageBoth && !server:
		return "the certificate's extended key usage does not allow TLS servers"
	case usage == UsageBoth && !client:
		return "the certificate's extended key usage does not allow TLS clients"
	}
	return ""
}

// weakness returns why a certificate is too weak, "" if it is not. A self-signed certificate may
// have a weak signature, because its signature proves nothing.
func weakness(c *x509.Certificate) string {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSABits {
			return "a short RSA key"
		}
	case *ecdsa.PublicKey:
		if key.Curve.Params().BitSize < 256 {
			return "a key on a short elliptic curve"
		}
	}
	switch c.SignatureAlgorithm {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1:
		if !bytes.Equal(c.RawIssuer, c.RawSubject) {
			return "a signature by " + c.SignatureAlgorithm.String()
		}
	}
	return ""
}

// issued reports whether a certificate names issuer as its issuer and is signed by it. It does not
// verify a weak signature, which Go cannot: weakness reports it.
func issued(issuer, c *x509.Certificate) bool {
	if !bytes.Equal(issuer.RawSubject, c.RawIssuer) {
		return false
	}
	err := issuer.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature)
	return err == nil || weakness(c) != ""
}

func matches(key crypto.Signer, c *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(x crypto.PublicKey) bool })
	return ok && public.Equal(c.PublicKey)
}

func subject(c *x509.Certificate) string {
	if name := c.Subject.String(); name != "" {
		return name
	}
	if len(c.URIs) > 0 {
		return c.URIs[0].String()
	}
	return "serial number " + c.SerialNumber.Text(16)
}

// keyBlock returns the PEM block of the private key without the rest of the file.
func keyBlock(text []byte) []byte {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return pem.EncodeToMemory(block)
		}
		text = rest
	}
}
