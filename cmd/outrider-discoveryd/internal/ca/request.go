package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// maximum size of a request, four times that of a request with an RSA key of 8192 bits
	maxRequestBytes = 16 << 10
	minRSABits      = 2048
	maxRSABits      = 8192
)

// errOtherIdentity is the error of a valid request for an identity other than the caller's.
var errOtherIdentity = errors.New("the request is for another identity")

var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// publicKey returns the public key in a certificate signing request (PEM). It returns an error if
// the request contains anything but identity, is not signed by its own key, or has a weak key.
func publicKey(text, identity string) (crypto.PublicKey, error) {
	if len(text) > maxRequestBytes {
		return nil, fmt.Errorf("the request has %d bytes, more than %d", len(text),
			maxRequestBytes)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || !strings.HasSuffix(block.Type, "CERTIFICATE REQUEST") {
		return nil, errors.New("the request is not a certificate request in PEM")
	}
	if strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("the PEM of the request is followed by other data")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be parsed: %w", err)
	}
	if err := checkKey(request.PublicKey); err != nil {
		return nil, err
	}
	switch request.SignatureAlgorithm {
	case x509.SHA1WithRSA, x509.ECDSAWithSHA1:
		return nil, fmt.Errorf("the request is signed with %s, which is too weak",
			request.SignatureAlgorithm)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the signature of the request is wrong: %w", err)
	}
	if err := checkNames(request, identity); err != nil {
		return nil, err
	}
	return request.PublicKey, nil
}

// checkKey returns an error if a public key is too weak, or of a type that Envoy does not support.
func checkKey(public crypto.PublicKey) error {
	switch key := public.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("the RSA key has %d bits; it must have %d to %d", bits, minRSABits,
				maxRSABits)
		}
		return nil
	case *ecdsa.PublicKey:
		if slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()},
			key.Curve) {
			return nil
		}
		return fmt.Errorf("the key is on curve %s; it must be on P-256, P-384 or P-521",
			key.Curve.Params().Name)
	}
	return fmt.Errorf("the key has type %T; it must be RSA or ECDSA", public)
}

// checkNames returns an error unless the request contains identity as its only name and no other
// extension. It compares the encoded names, because Go's parser omits rare types of names.
func checkNames(request *x509.CertificateRequest, identity string) error {
	var names []asn1.RawValue
	for _, extension := range request.Extensions {
		if !extension.Id.Equal(subjectAltName) {
			return fmt.Errorf("the request has extension %s; only a SPIFFE ID is allowed",
				extension.Id)
		}
		var more []asn1.RawValue
		if _, err := asn1.Unmarshal(extension.Value, &more); err != nil {
			return fmt.Errorf("the names of the request cannot be parsed: %w", err)
		}
		names = append(names, more...)
	}
	const uri = 6 // tag of uniformResourceIdentifier in an X.509 GeneralName
	if len(names) != 1 || names[0].Class != asn1.ClassContextSpecific || names[0].Tag != uri {
		return fmt.Errorf("the request has %d names instead of exactly one SPIFFE ID: %s",
			len(names), describe(request))
	}
	if requested := string(names[0].Bytes); requested != identity {
		return fmt.Errorf("%w: %q", errOtherIdentity, requested)
	}
	return nil
}

// describe lists the names in a certificate request for messages, without names of rare types.
func describe(request *x509.CertificateRequest) string {
	all := slices.Concat(request.DNSNames, request.EmailAddresses)
	for _, address := range request.IPAddresses {
		all = append(all, address.String())
	}
	for _, uri := range request.URIs {
		all = append(all, uri.String())
	}
	return fmt.Sprintf("%q", strings.Join(all, ", "))
}
