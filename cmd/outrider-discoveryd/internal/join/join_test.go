package join

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/jwt"
)

func newKey(t *testing.T, kind pki.KeyType) (private, public []byte, key crypto.Signer) {
	t.Helper()
	key, err := pki.GenerateKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	private, err = pki.EncodeKey(key, kind == pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	return private, publicPEM(t, key.Public()), key
}

func publicPEM(t *testing.T, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func parse(t *testing.T, text string) *jwt.Token {
	t.Helper()
	token, fault := jwt.Parse(text, jwt.AsymmetricAlgorithms)
	if fault != jwt.NoFault {
		t.Fatal(fault)
	}
	return token
}

// A signed token is verified by a set of several keys, as an operator configures it while a key is
// replaced.
func TestSign_IsVerified(t *testing.T) {
	now := time.Now()
	_, other, _ := newKey(t, pki.ECDSAP256)
	for _, kind := range []pki.KeyType{pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048} {
		private, public, _ := newKey(t, kind)
		signed, err := SignToken(private, "shop/web", now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		token := parse(t, signed.Text)
		keys, err := ParseKeys(append(other, public...))
		if err == nil {
			err = Verify(token, keys, now.Add(-time.Hour), now)
		}
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if token.Claims["sub"] != "system:serviceaccount:shop:web" || token.Issuer() != Issuer ||
			TokenID(token) != signed.ID || len(signed.ID) < 20 {
			t.Errorf("claims %v", token.Claims)
		}
	}
}

func TestSign_Refuses(t *testing.T) {
	private, public, _ := newKey(t, pki.ECDSAP256)
	small, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // the case
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, account string
		ttl           time.Duration
		key           []byte
		want          string
	}{
		{"no account", "web", time.Hour, private, "NAMESPACE/NAME"},
		{"part of a subject", "a:b/web", time.Hour, private, "NAMESPACE/NAME"},
		{"two", "a/b/c", time.Hour, private, "NAMESPACE/NAME"},
		{"long life", "a/b", 25 * time.Hour, private, "is not between"},
		{"no life", "a/b", 0, private, "is not between"},
		{"public key", "a/b", time.Hour, public, "no private key"},
		{"short key", "a/b", time.Hour, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(small)}), "2048 bits or more"},
	} {
		if _, err := SignToken(c.key, c.account, time.Now(), c.ttl); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestVerify_Refuses(t *testing.T) {
	private, public, key := newKey(t, pki.ECDSAP256)
	_, other, _ := newKey(t, pki.ECDSAP256)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	good := func() claims {
		return claims{Issuer, Audience, "system:serviceaccount:a:b", now.Unix(),
			now.Add(time.Hour).Unix(), "id"}
	}
	with := func(change func(*claims)) string {
		c := good()
		change(&c)
		body, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(body)
		if err != nil {
			t.Fatal(err)
		}
		text, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	unchanged := with(func(*claims) {})
	for _, c := range []struct {
		name, text string
		keys       []byte
		notBefore  time.Time
		want       string // part of the error; "": the token is valid
	}{
		{"good", unchanged, append(publicPEM(t, edwards.Public()), public...), time.Time{}, ""},
		{"withdrawn key", unchanged, other, time.Time{}, "no key of [auth] join_key_file"},
		{"withdrawn", unchanged, public, now.Add(time.Minute), "join_not_before"},
		{"another audience", with(func(c *claims) { c.Audience = "x" }), public, time.Time{},
			"not for audience"},
		{"long life", with(func(c *claims) { c.ExpiresAt += 24 * 3600 }), public, time.Time{},
			"longer than 24h"},
		{"future", with(func(c *claims) { c.IssuedAt += 600 }), public, time.Time{}, "compare"},
		{"no keys", unchanged, nil, time.Time{}, "no public key"},
		{"private key in the file", unchanged, private, time.Time{}, "there is a private key"},
		{"weak key in the file", unchanged, publicPEM(t, p224.Public()), time.Time{}, "P-256"},
	} {
		keys, err := ParseKeys(c.keys)
		if err == nil {
			err = Verify(parse(t, c.text), keys, c.notBefore, now)
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
