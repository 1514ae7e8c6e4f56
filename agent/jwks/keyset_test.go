package jwks

import (
	"strings"
	"testing"
)

const rsaKey = `{"kty":"RSA","n":"AQAB","e":"AQAB"}`

func TestParseInline(t *testing.T) {
	for text, want := range map[string]string{
		`{"keys":[` + rsaKey + `]}`: "",
		`{"keys":[]}`:               "",
		rsaKey:                      "single",
		`{"keys":[{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}]}`:        "",
		`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AQ"}]}`:              "",
		`{"keys":[{"kty":"oct","k":"AQ"}]}`:                              "private",
		`{"keys":[{"kty":"RSA","n":"AQ","e":"AQ","d":"AQ"}]}`:            "private",
		`{"keys":[{"kty":"RSA","n":"A+/_-Q==","e":"AQ","alg":"RS256"}]}`: "",
		`{"keys":[{"kty":"EC","crv":"P-1","x":"AQ","y":"AQ"}]}`:          "crv is not P-256",
		`{"keys":[{"kty":"RSA","e":"AQ"}]}`:                              "n is not in base64url",
		`{"keys":[{"kty":"RSA","n":"!","e":"AQ"}]}`:                      "n is not in base64url",
		`{"keys":[{"kty":"none"}]}`:                                      "kty is not RSA",
		`{"keys":[{"kty":"RSA","n":"AQ","e":"AQ","kid":1}]}`:             "kid is not a string",
		`{"keys":[{"kty":"RSA","n":"AQ","e":"AQ","x5c":["AQ=="]}]}`:      "x5c contains",
		`{"keys":{}}`:  "is not a JSON object",
		`{"keys":[1]}`: "key 1: the key is not a JSON object",
		`[]`:           "is not a JSON object", `null`: "is not a JSON object", ``: "is not a JSON",
	} {
		got, err := ParseInlineKeySet(text)
		ok := err != nil && want != "" && strings.Contains(err.Error(), want)
		switch want {
		case "", "single", "private":
			ok = err == nil && got.IsSingleKey == (want == "single") &&
				got.HasPrivateKeys == (want == "private")
		}
		if !ok {
			t.Errorf("%s: %+v, %v, want %q", text, got, err, want)
		}
	}
}

func TestNoKeys_IsAKeySet(t *testing.T) {
	if got, err := ParseInlineKeySet(UnusableKeySet()); err != nil || got.HasPrivateKeys ||
		got.IsSingleKey {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCheckFetched_NeedsAValidKey(t *testing.T) {
	for text, valid := range map[string]bool{
		`{"keys":[]}`: true, `{"keys":[{}]}`: false, `{"keys":[{},` + rsaKey + `]}`: true,
	} {
		if err := checkFetched([]byte(text)); (err == nil) != valid {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzKeySet(f *testing.F) {
	f.Add(UnusableKeySet(), `{"keys":[`+rsaKey+`]}`)
	f.Add(`{"a":"-----BEGIN CERTIFICATE-----\nAQ==\n-----END CERTIFICATE-----\n"}`, rsaKey)
	f.Add(`{"keys":[{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ","x5c":[]}]}`, `{"keys":null}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if equal(a, b) != equal(b, a) {
			t.Error("equal is not symmetric")
		}
		if err := checkFetched([]byte(a)); err == nil && !equal(a, a) {
			t.Error("a key set does not equal itself")
		}
		if _, err := ParseInlineKeySet(a); err == nil && strings.TrimSpace(a)[0] != '{' {
			t.Error("not an object is a key set")
		}
	})
}
