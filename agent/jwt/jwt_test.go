package jwt

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

func TestVerify(t *testing.T) {
	ours, other := newKey(t), newKey(t)
	set := keySet(t, jose.JSONWebKey{Key: ours.Public(), KeyID: "k1"},
		jose.JSONWebKey{Key: []byte(strings.Repeat("s", 32)), KeyID: "shared"})
	symmetric := sign(t, jose.HS256, []byte(strings.Repeat("s", 32)), "shared")
	for _, test := range []struct {
		name, token, set string
		algorithms       []jose.SignatureAlgorithm
		want             Fault
	}{
		{"ours", sign(t, jose.ES256, ours, "k1"), set, AsymmetricAlgorithms, NoFault},
		{"no key ID", sign(t, jose.ES256, ours, ""), set, AsymmetricAlgorithms, NoFault},
		{"another key", sign(t, jose.ES256, other, "k1"), set, AsymmetricAlgorithms,
			FaultVerification},
		{"unknown key ID", sign(t, jose.ES256, ours, "k2"), set, AsymmetricAlgorithms,
			FaultNoMatchingKey},
		{"no key set", sign(t, jose.ES256, ours, "k1"), "{}", AsymmetricAlgorithms, FaultNoKeys},
		{"symmetric", symmetric, set, AllAlgorithms, NoFault},
		{"symmetric refused", symmetric, set, AsymmetricAlgorithms, FaultHeaderAlgorithm},
		{"no algorithm", "eyJhbGciOiJub25lIn0.e30.", set, AllAlgorithms, FaultHeaderAlgorithm},
		{"two parts", "a.b", set, AllAlgorithms, FaultNotThreeParts},
		{"too long", strings.Repeat("a", maxTokenBytes) + ".b.c", set, AllAlgorithms,
			FaultNotThreeParts},
	} {
		token, fault := Parse(test.token, test.algorithms)
		if fault == NoFault {
			fault = token.Verify(ParseKeys(test.set))
		}
		if fault != test.want {
			t.Errorf("%s: %q, want %q", test.name, fault, test.want)
		}
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func keySet(t *testing.T, keys ...jose.JSONWebKey) string {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sign(t *testing.T, algorithm jose.SignatureAlgorithm, key any, id string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm,
		Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign([]byte(`{"iss":"i"}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
