package decisiontable

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// tokens signs JWTs.
type tokens struct {
	key, foreign *rsa.PrivateKey
	port         int // port of the HTTP server with the key set
	served       atomic.Pointer[string]
	istioSet     string            // key set in Istio's test data
	istioTokens  map[string]string // tokens in Istio's test data, by name
}

func newTokens(t testing.TB) *tokens {
	t.Helper()
	made := &tokens{foreign: newKey(t)}
	made.rotate(t)
	made.port = serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, *made.served.Load())
	}))
	return made
}

func newKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// rotate replaces the signing key, and its public key in the key set.
func (k *tokens) rotate(t testing.TB) {
	t.Helper()
	k.key = newKey(t)
	k.served.Store(new(k.set()))
}

// modulus returns the modulus of the key in the encoding of a key set.
func (k *tokens) modulus() string { return encode(k.key.N.Bytes()) }

// set returns the key set as JSON.
func (k *tokens) set() string {
	return fmt.Sprintf(`{"keys":[{"kty":"RSA","alg":"RS256","kid":"one","use":"sig","n":%q,"e":%q}]}`,
		k.modulus(), encode(big.NewInt(int64(k.key.E)).Bytes()))
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// constant matches a token in Istio's source.
var constant = regexp.MustCompile(`(?m)^\s+(Token\w+) = "([^"]+)"`)

// istio reads the keys and tokens in Istio's test data.
func (k *tokens) istio(t testing.TB, source string) {
	t.Helper()
	folder := filepath.Join(source, "tests", "common", "jwt")
	set, err := os.ReadFile(filepath.Join(folder, "jwks.json"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "jwt_token.go"))
	if err != nil {
		t.Fatal(err)
	}
	k.istioSet, k.istioTokens = strings.TrimSpace(string(set)), map[string]string{}
	for _, found := range constant.FindAllStringSubmatch(string(text), -1) {
		k.istioTokens[found[1]] = found[2]
	}
	if len(k.istioTokens) < 10 {
		t.Fatalf("%d tokens in Istio's source", len(k.istioTokens))
	}
}

// Reasons why a token is not valid.
const (
	valid   = ""
	expired = "expired"
	early   = "early" // the token is valid only later
	foreign = "foreign"
	unknown = "unknown" // the token is signed by an unknown key
	garbled = "garbled"
	altered = "altered"
)

// sign returns a token with claims, made invalid by fault unless that is "".
func (k *tokens) sign(t testing.TB, claims map[string]any, fault string) string {
	t.Helper()
	claims = maps.Clone(claims)
	key, id := k.key, "one"
	switch fault {
	case expired:
		claims["exp"] = time.Now().Add(-time.Hour).Unix()
	case early:
		claims["nbf"] = time.Now().Add(time.Hour).Unix()
	case foreign:
		key = k.foreign
	case unknown:
		id = "two"
	case garbled:
		return "a.b.c"
	}
	header, _ := json.Marshal(map[string]string{"alg": "RS256", "kid": id, "typ": "JWT"})
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	text := encode(header) + "." + encode(body)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	if fault == altered {
		claims["sub"] = "root"
		body, _ = json.Marshal(claims)
		text = encode(header) + "." + encode(body)
	}
	return text + "." + encode(signature)
}
