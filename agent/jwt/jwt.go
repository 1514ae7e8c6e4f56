// Package jwt parses JSON Web Tokens and verifies their signatures with the keys of a key set
// (JWKS).
package jwt

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// Fault is the reason for refusing a token, in Envoy's wording; NoFault if the token is accepted.
// It implements error, but NoFault must not be used as one.
type Fault string

// Error implements error.
func (f Fault) Error() string { return string(f) }

// The faults of a token.
const (
	NoFault            Fault = ""
	FaultNoKeys        Fault = "Jwks doesn't have any valid public key"
	FaultNoMatchingKey Fault = "Jwks doesn't have key to match kid or alg from Jwt"
	FaultVerification  Fault = "Jwt verification fails"
	FaultNotThreeParts Fault = "Jwt is not in the form of Header.Payload.Signature " +
		"with two dots and 3 sections"
	FaultHeaderNotBase64    Fault = "Jwt header is an invalid Base64url encoded"
	FaultHeaderNotJSON      Fault = "Jwt header is an invalid JSON"
	faultHeaderNoAlgorithm  Fault = "Jwt header [alg] field is required and must be a string"
	FaultHeaderAlgorithm    Fault = "Jwt header [alg] is not supported"
	FaultPayloadNotBase64   Fault = "Jwt payload is an invalid Base64url encoded"
	FaultPayloadNotJSON     Fault = "Jwt payload is an invalid JSON"
	FaultSignatureNotBase64 Fault = "Jwt signature is an invalid Base64url encoded"
)

// AsymmetricAlgorithms are the signature algorithms with a private and a public key.
var AsymmetricAlgorithms = []jose.SignatureAlgorithm{jose.ES256, jose.ES384, jose.ES512, jose.RS256,
	jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA}

// AllAlgorithms are the algorithms that Envoy supports: AsymmetricAlgorithms and those with a
// shared key.
var AllAlgorithms = slices.Concat(AsymmetricAlgorithms,
	[]jose.SignatureAlgorithm{jose.HS256, jose.HS384, jose.HS512})

// maxTokenBytes bounds the length of a token that Parse accepts.
const maxTokenBytes = 64 << 10

// Token is a JWT.
type Token struct {
	Claims map[string]any

	text      string
	algorithm jose.SignatureAlgorithm
	key       string // ID of the signing key, "" if the token has none
}

// Parse parses a token as Envoy does, without verifying it. The algorithm in its header must be one
// of algorithms.
func Parse(text string, algorithms []jose.SignatureAlgorithm) (*Token, Fault) {
	if len(text) > maxTokenBytes || strings.Count(text, ".") != 2 {
		return nil, FaultNotThreeParts
	}
	parts := strings.Split(text, ".")
	var header struct {
		Algorithm *string `json:"alg"`
		Key       string  `json:"kid"`
	}
	t := &Token{text: text}
	decoded, err := base64.RawURLEncoding.DecodeString(parts[0])
	switch {
	case err != nil:
		return nil, FaultHeaderNotBase64
	case !json.Valid(decoded):
		return nil, FaultHeaderNotJSON
	case json.Unmarshal(decoded, &header) != nil || header.Algorithm == nil:
		return nil, faultHeaderNoAlgorithm
	}
	t.algorithm, t.key = jose.SignatureAlgorithm(*header.Algorithm), header.Key
	if !slices.Contains(algorithms, t.algorithm) {
		return nil, FaultHeaderAlgorithm
	}
	decoded, err = base64.RawURLEncoding.DecodeString(parts[1])
	switch {
	case err != nil:
		return nil, FaultPayloadNotBase64
	case json.Unmarshal(decoded, &t.Claims) != nil:
		return nil, FaultPayloadNotJSON
	}
	if _, err = base64.RawURLEncoding.DecodeString(parts[2]); err != nil {
		return nil, FaultSignatureNotBase64
	}
	return t, NoFault
}

// Issuer returns the issuer, "" if there is none.
func (t *Token) Issuer() string {
	issuer, _ := t.Claims["iss"].(string)
	return issuer
}

// Audiences returns the audiences. The claim "aud" is a string or a list of strings.
func (t *Token) Audiences() (all []string) {
	switch of := t.Claims["aud"].(type) {
	case string:
		return []string{of}
	case []any:
		for _, one := range of {
			if text, ok := one.(string); ok {
				all = append(all, text)
			}
		}
	}
	return all
}

// Keys is a set of public or shared keys for verifying signatures. The zero value is empty.
type Keys struct{ all []jose.JSONWebKey }

// NewKeys returns a set with these keys.
func NewKeys(keys []jose.JSONWebKey) Keys { return Keys{keys} }

// ParseKeys parses a key set (JWKS). It omits keys that it cannot parse; the result is empty if the
// text is not a key set.
func ParseKeys(set string) Keys {
	var keys struct{ Keys []json.RawMessage }
	if json.Unmarshal([]byte(set), &keys) != nil {
		return Keys{}
	}
	var usable Keys
	for _, text := range keys.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) == nil {
			usable.all = append(usable.all, key)
		}
	}
	return usable
}

// Verify verifies the signature. It tries the keys that have the key ID and algorithm of the token;
// a key without key ID or algorithm matches any.
func (t *Token) Verify(keys Keys) Fault {
	if len(keys.all) == 0 {
		return FaultNoKeys
	}
	signed, err := jose.ParseSignedCompact(t.text, []jose.SignatureAlgorithm{t.algorithm})
	fault := FaultNoMatchingKey
	for _, key := range keys.all {
		if key.KeyID != "" && t.key != "" && key.KeyID != t.key ||
			key.Algorithm != "" && key.Algorithm != string(t.algorithm) {
			continue
		}
		fault = FaultVerification
		if err != nil {
			continue
		}
		if _, failed := signed.Verify(key.Key); failed == nil {
			return NoFault
		}
	}
	return fault
}
