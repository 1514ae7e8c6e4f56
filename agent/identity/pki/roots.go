package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"
)

// ParseRoots parses root certificates. It fails if all have expired at now.
func ParseRoots(in PEMInput, now time.Time) ([]*x509.Certificate, error) {
	roots, err := in.certificates()
	if err != nil {
		return nil, err
	}
	expired := func(c *x509.Certificate) bool { return now.After(c.NotAfter) }
	if !slices.ContainsFunc(roots, func(c *x509.Certificate) bool { return !expired(c) }) {
		return nil, in.problem(ErrExpired, "replace the root certificates",
			"all %d root certificates have expired, the last one (%s) on %s", len(roots),
			subject(roots[len(roots)-1]), roots[len(roots)-1].NotAfter.UTC().Format(time.DateTime))
	}
	return roots, nil
}

// ParseRevocations returns the revocation lists (CRL) of a file, at least one, as PEM.
func ParseRevocations(in PEMInput) ([]byte, error) {
	blocks, err := in.blocks()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, block := range blocks {
		if block.Type != "X509 CRL" {
			continue
		}
		if _, err := x509.ParseRevocationList(block.Bytes); err != nil {
			return nil, in.problem(ErrNotPEM, "replace the revocation list",
				"a revocation list cannot be parsed: %v", err)
		}
		_ = pem.Encode(&text, block) // writing into memory does not fail
	}
	if text.Len() == 0 {
		return nil, in.problem(ErrNotPEM, "write revocation lists in PEM format",
			"the file has no revocation list")
	}
	return text.Bytes(), nil
}

// MergeRoots returns the certificates of all bundles in order, without duplicates.
func MergeRoots(bundles ...[]*x509.Certificate) []*x509.Certificate {
	var merged []*x509.Certificate
	for _, root := range slices.Concat(bundles...) {
		if !slices.ContainsFunc(merged, root.Equal) {
			merged = append(merged, root)
		}
	}
	return merged
}

// EncodeCertificates returns certificates as PEM.
func EncodeCertificates(certificates []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, c := range certificates {
		// Writing into memory does not fail.
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return text.Bytes()
}
