package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
)

// PEMInput is the content of a file.
type PEMInput struct {
	File string // path, for messages
	PEM  []byte
}

func (in PEMInput) problem(kind error, fix, detail string, arguments ...any) *Problem {
	detail = fmt.Sprintf(detail, arguments...)
	return &Problem{Kind: kind, File: in.File, Detail: detail, Fix: fix}
}

// blocks returns the PEM blocks. It is an error if a block has no end: the file is being written,
// or was truncated.
func (in PEMInput) blocks() ([]*pem.Block, error) {
	var all []*pem.Block
	rest := in.PEM
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		all = append(all, block)
	}
	if begun := bytes.Count(in.PEM, []byte("-----BEGIN ")); begun != len(all) {
		return nil, in.problem(ErrNotPEM, "write the complete file",
			"%d PEM blocks begin, %d are complete", begun, len(all))
	}
	return all, nil
}

// certificates returns all certificates, at least one. It skips other types of blocks, because the
// file may also contain the key.
func (in PEMInput) certificates() ([]*x509.Certificate, error) {
	blocks, err := in.blocks()
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, in.problem(ErrNotPEM, "replace the certificate",
				"certificate %d cannot be parsed: %v", len(all)+1, err)
		}
		all = append(all, certificate)
	}
	if len(all) == 0 {
		return nil, in.problem(ErrNotPEM, "write certificates in PEM format",
			"the file has no certificate")
	}
	return all, nil
}

// key returns the first private key.
func (in PEMInput) key() (crypto.Signer, error) {
	blocks, err := in.blocks()
	if err != nil {
		return nil, err
	}
	for _, block := range blocks {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return nil, in.problem(ErrNoKey, "remove the passphrase (openssl pkey)",
				"the private key is encrypted")
		}
		key, err := parseKey(block.Bytes)
		if err != nil {
			return nil, in.problem(ErrNoKey, "write an ECDSA or RSA key in PEM format",
				"the private key cannot be parsed")
		}
		return key, nil
	}
	return nil, in.problem(ErrNoKey, "write the private key of the certificate",
		"the file has no private key")
}

func parseKey(der []byte) (crypto.Signer, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		if key, err := x509.ParseECPrivateKey(der); err == nil {
			return key, nil
		}
		return x509.ParsePKCS1PrivateKey(der)
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case *rsa.PrivateKey:
		return key, nil
	}
	return nil, fmt.Errorf("keys of type %T are not supported", key)
}
