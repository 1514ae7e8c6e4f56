package pki_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pki"
)

func token(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestToken(t *testing.T) {
	good, err := pki.ParseToken("t", []byte(token(`{"exp":2000000000.5}`)+"\n"))
	if err != nil || good.Raw != token(`{"exp":2000000000.5}`) {
		t.Fatalf("token %q, %v", good.Raw, err)
	}
	if err := good.CheckTime("t", time.Unix(1_999_999_999, 0)); err != nil {
		t.Error(err)
	}
	err = good.CheckTime("t", time.Unix(2_000_000_001, 0))
	if !errors.Is(err, pki.ErrExpired) || !strings.Contains(err.Error(), "expired on 2033-05-18") {
		t.Errorf("expired token: %v", err)
	}
	eternal, err := pki.ParseToken("t", []byte(token(`{}`)))
	if err != nil || eternal.CheckTime("t", time.Now()) != nil {
		t.Errorf("token without expiry: %v", err)
	}
	for _, text := range []string{"", "secret", "a.b", "a.!.c", "a.e30.c\x00", "é.e30.c",
		token("[]"), token(`{"exp":"x"}`), token(`{"exp":1e300}`), strings.Repeat("a", 1<<17)} {
		_, err := pki.ParseToken("t", []byte(text))
		if !errors.Is(err, pki.ErrNotJWT) {
			t.Errorf("%.20q: %v", text, err)
		}
		if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("the message quotes the token: %v", err)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add([]byte(token(`{"exp":1}`)))
	f.Add([]byte(token(`{"exp":-1e308}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		token, err := pki.ParseToken("t", text)
		if err != nil {
			return
		}
		for _, c := range token.Raw {
			if c < '!' || c > '~' {
				t.Fatalf("a token with %q, which no header may have", c)
			}
		}
		_ = token.CheckTime("t", time.Now())
	})
}
