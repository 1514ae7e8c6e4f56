// Package join signs and verifies join tokens. A host that has no other token uses a join token to
// obtain its first certificate. It is a JWT for one service account, signed with the operator's
// key.
package join

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"outrider.org/outrider/agent/jwt"
)

const (
	// Issuer is the claim iss of join tokens.
	Issuer = "outrider-discoveryd"
	// Audience is the claim aud of join tokens. It is the audience of all tokens with which hosts
	// request certificates.
	Audience = "istio-ca"
	// MaxTTL bounds the validity of a join token.
	MaxTTL = 24 * time.Hour

	minRSABits = 2048
	// how far ahead the clock of the host that signs may be
	maxEarly = time.Minute
)

// claims are the claims of a join token.
type claims struct {
	Issuer    string `json:"iss"`
	Audience  string `json:"aud"`
	Subject   string `json:"sub"`
	IssuedAt  int64  `json:"iat"`
	ExpiresAt int64  `json:"exp"`
	ID        string `json:"jti"`
}

// SignedToken is a new join token.
type SignedToken struct {
	Text    string
	ID      string // identifies the token in logs
	KeyID   string
	Expires time.Time
}

// SignToken signs a token for a service account, NAMESPACE/NAME, with the private key in text
// (PEM).
func SignToken(text []byte, account string, now time.Time, ttl time.Duration) (*SignedToken,
	error) {
	namespace, name, ok := strings.Cut(account, "/")
	if !ok || !isName(namespace) || !isName(name) {
		return nil, fmt.Errorf("%q is not a service account; write NAMESPACE/NAME", account)
	}
	if ttl < time.Second || ttl > MaxTTL {
		return nil, fmt.Errorf("the lifetime %v is not between 1s and %v", ttl, MaxTTL)
	}
	key, err := privateKey(text)
	if err != nil {
		return nil, err
	}
	algorithm, err := algorithmOf(key.Public())
	if err != nil {
		return nil, err
	}
	keyID, err := keyIDOf(key.Public())
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key},
		(&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", keyID))
	if err != nil {
		return nil, err
	}
	s := &SignedToken{ID: rand.Text(), KeyID: keyID, Expires: now.Add(ttl)}
	body, err := json.Marshal(claims{Issuer, Audience,
		"system:serviceaccount:" + namespace + ":" + name, now.Unix(), s.Expires.Unix(), s.ID})
	if err != nil {
		return nil, err
	}
	signed, err := signer.Sign(body)
	if err != nil {
		return nil, err
	}
	s.Text, err = signed.CompactSerialize()
	return s, err
}

// Verify verifies a join token. It refuses tokens that were issued before notBefore. The caller
// must check that the claim iss is Issuer, and that the token has not expired.
func Verify(token *jwt.Token, keys jwt.Keys, notBefore, now time.Time) error {
	if fault := token.Verify(keys); fault != jwt.NoFault {
		return fmt.Errorf("no key of [auth] join_key_file has signed the token: %w", fault)
	}
	if !slices.Equal(token.Audiences(), []string{Audience}) {
		return fmt.Errorf("the token is not for audience %q exclusively", Audience)
	}
	issued, hasIssued := token.Claims["iat"].(float64)
	expires, _ := token.Claims["exp"].(float64)
	switch {
	case !hasIssued:
		return errors.New("the token has no time of issue")
	case issued > float64(now.Add(maxEarly).Unix()):
		return errors.New("the token was issued in the future; compare the clocks")
	case expires-issued > MaxTTL.Seconds():
		return fmt.Errorf("the lifetime of the token is longer than %v", MaxTTL)
	case issued < float64(notBefore.Unix()) && !notBefore.IsZero():
		return errors.New("the token was issued before [auth] join_not_before, which revokes it")
	}
	return nil
}

// TokenID returns the claim jti, cut off at 64 bytes, which identifies a token in logs.
func TokenID(token *jwt.Token) string {
	const most = 64
	id, _ := token.Claims["jti"].(string)
	return id[:min(len(id), most)]
}

// ParseKeys parses public keys in PEM. It returns an error if any of them cannot be used.
func ParseKeys(text []byte) (jwt.Keys, error) {
	var all []jose.JSONWebKey
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return jwt.Keys{}, errors.New("there is a private key in [auth] join_key_file; write " +
				"public ones (openssl pkey -pubout)")
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return jwt.Keys{}, fmt.Errorf("the PEM block %s cannot be parsed: %w", block.Type, err)
		}
		if _, err := algorithmOf(public); err != nil {
			return jwt.Keys{}, err
		}
		id, err := keyIDOf(public)
		if err != nil {
			return jwt.Keys{}, err
		}
		all = append(all, jose.JSONWebKey{Key: public, KeyID: id})
	}
	if len(all) == 0 {
		return jwt.Keys{}, errors.New("there is no public key in PEM in [auth] join_key_file")
	}
	return jwt.NewKeys(all), nil
}

// privateKey returns the private key in a PEM text.
func privateKey(text []byte) (crypto.Signer, error) {
	block, rest := pem.Decode(text)
	// skip other blocks, such as EC PARAMETERS
	for block != nil && !strings.HasSuffix(block.Type, "PRIVATE KEY") {
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, errors.New("the file has no private key in PEM")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the private key cannot be parsed; store it without passphrase")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}

// algorithmOf returns the signature algorithm for a key, or an error if the key cannot be used.
func algorithmOf(public crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		algorithm, known := map[int]jose.SignatureAlgorithm{256: jose.ES256, 384: jose.ES384,
			521: jose.ES512}[key.Curve.Params().BitSize]
		if known {
			return algorithm, nil
		}
	case *rsa.PublicKey:
		if key.N.BitLen() >= minRSABits {
			return jose.RS256, nil
		}
	case ed25519.PublicKey:
		return jose.EdDSA, nil
	}
	return "", errors.New("the key must be ECDSA with P-256 or larger, Ed25519, or RSA with 2048 " +
		"bits or more")
}

// keyIDOf returns the key ID (kid) of a public key: a hash of the key.
func keyIDOf(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:12]), err
}

// isName reports whether a text is valid as the name of a namespace or service account.
func isName(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789.-") == ""
}
