package jwks

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// UnusableKeySet returns a key set for issuers whose key set is unknown. Envoy refuses all their
// tokens: the private key was discarded when the key was generated, so nobody can sign a valid
// token.
func UnusableKeySet() string {
	return `{"keys":[{"kty":"RSA","e":"AQAB","n":"` + noKey + `"}]}`
}

const noKey = "pGZn5enQgKgEU7-yxi71CW-WyxAkmifV_kNUy8_-WZz0Rk-JQ6yehnUarF6_EN9ROBdQ4bfSmURYz9_U" +
	"Q5V5xYeoaLnxgRoR2e5pVpGwve4TYx75TwltYmblZaubAONm7MVg2DqenMT7UAPbR6QNzRRKuY7lh9_0" +
	"c7rdMrKOAtKUibhjPQ4CfCQqP4Zcy92hGU20ljU2wjESHkFcJgXfW8USx7V9h7oIaZRCtZY-2wfOjA6Q" +
	"SDooGoJI-rrRk4rOz-GUPAlFRkszYNbenRTC57claWnbGj3smpNTs0QQ1rt3YnkHA7GI-LWNLaLF-6Qj" +
	"-6AvhOXKZ45Jh-pV2PIcJw"

// checkFetched returns an error unless a document is a key set that Envoy understands: an object
// with the list "keys", which is empty or contains a valid key, or an object that maps key IDs to
// certificates.
func checkFetched(text []byte) error {
	keys, err := split(text)
	if err != nil || len(keys) == 0 {
		return err
	}
	for _, key := range keys {
		if _, err = parseKey(key); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the key set has no valid key; the error of its last key: %w", err)
}

// split returns the keys of a key set, or nil if the set maps key IDs to certificates.
func split(text []byte) ([]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || !utf8.Valid(text) {
		return nil, errors.New("the key set is not a JSON object")
	}
	if list, ok := members["keys"]; ok {
		var keys []json.RawMessage
		if err := json.Unmarshal(list, &keys); err != nil || keys == nil {
			return nil, errors.New(`"keys" of the key set is not a list`)
		}
		for i, key := range keys {
			var of map[string]json.RawMessage
			if err := json.Unmarshal(key, &of); err != nil || of == nil {
				return nil, fmt.Errorf("key %d of the key set is not an object", i+1)
			}
		}
		return keys, nil
	}
	for _, member := range members {
		var certificate string
		if json.Unmarshal(member, &certificate) != nil {
			return nil, errors.New(`the key set has no list "keys"`)
		}
		if block, _ := pem.Decode([]byte(certificate)); block == nil {
			return nil, errors.New(`the key set has no list "keys"`)
		}
	}
	if len(members) == 0 {
		return nil, errors.New(`the key set has no list "keys"`)
	}
	return nil, nil
}

// equal reports whether two key sets have the same keys, in any order.
func equal(a, b string) bool {
	if a == b || a == "" || b == "" {
		return a == b
	}
	first, second := canonical(a), canonical(b)
	return first != nil && slices.Equal(first, second)
}

// canonical returns the keys of a key set in a canonical form and order. It returns nil if there
// are none or the set is invalid.
func canonical(text string) []string {
	keys, err := split([]byte(text))
	if err != nil {
		return nil
	}
	var all []string
	for _, key := range keys {
		var of map[string]any
		if json.Unmarshal(key, &of) != nil {
			return nil
		}
		again, err := json.Marshal(of)
		if err != nil {
			return nil
		}
		all = append(all, string(again))
	}
	slices.Sort(all)
	return all
}

// InlineKeySet describes a key set that is written in a RequestAuthentication (jwks).
type InlineKeySet struct {
	HasPrivateKeys bool // contains private or symmetric keys
	IsSingleKey    bool // is a single key instead of a set, which Envoy does not understand
}

// ParseInlineKeySet checks a key set as Istio does.
func ParseInlineKeySet(text string) (InlineKeySet, error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal([]byte(text), &set); err != nil || !isObject([]byte(text)) {
		return InlineKeySet{}, errors.New("is not a JSON object with a list \"keys\"")
	}
	var found InlineKeySet
	keys := []json.RawMessage{json.RawMessage(text)}
	if found.IsSingleKey = set.Keys == nil; !found.IsSingleKey {
		keys = *set.Keys
	}
	for i, key := range keys {
		private, err := parseKey(key)
		if err != nil {
			return InlineKeySet{}, fmt.Errorf("key %d: %w", i+1, err)
		}
		found.HasPrivateKeys = found.HasPrivateKeys || private
	}
	return found, nil
}

func isObject(text []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }

// parseKey checks a JSON Web Key and reports whether it is private.
func parseKey(text []byte) (private bool, err error) {
	var key map[string]any
	if err := json.Unmarshal(text, &key); err != nil || !isObject(text) {
		return false, errors.New("the key is not a JSON object")
	}
	for _, name := range []string{"kty", "alg", "kid", "use", "x5t", "x5t#S256", "x5u"} {
		if _, ok := key[name].(string); key[name] != nil && !ok {
			return false, fmt.Errorf("%s is not a string", name)
		}
	}
	_, private = key["d"]
	var needed []string
	switch key["kty"] {
	case "RSA":
		needed = []string{"n", "e"}
	case "EC":
		needed = []string{"x", "y"}
	case "OKP":
		needed = []string{"x"}
	case "oct":
		needed, private = []string{"k"}, true
	default:
		return false, errors.New("kty is not RSA, EC, OKP or oct")
	}
	if private && key["kty"] != "oct" {
		needed = append(needed, "d")
	}
	for _, name := range needed {
		if value, _ := key[name].(string); value == "" || !isBase64(value) {
			return false, fmt.Errorf("%s is not in base64url", name)
		}
	}
	curves := map[any][]string{"EC": {"P-256", "P-384", "P-521"}, "OKP": {"Ed25519", "X25519"}}
	if known := curves[key["kty"]]; known != nil {
		if curve, _ := key["crv"].(string); !slices.Contains(known, curve) {
			return false, fmt.Errorf("crv is not %s", strings.Join(known, " or "))
		}
	}
	return private, checkChain(key["x5c"])
}

func isBase64(text string) bool {
	text = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	_, err := base64.RawStdEncoding.DecodeString(text)
	return err == nil
}

// checkChain checks the certificates of a key.
func checkChain(chain any) error {
	if chain == nil {
		return nil
	}
	list, ok := chain.([]any)
	if !ok {
		return errors.New("x5c is not a list")
	}
	for _, element := range list {
		text, _ := element.(string)
		der, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			_, err = x509.ParseCertificate(der)
		}
		if err != nil {
			return errors.New("x5c contains something other than base64 certificates")
		}
	}
	return nil
}
