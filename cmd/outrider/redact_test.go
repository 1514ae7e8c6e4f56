package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRedactText(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"token = \"x y\"\n", "token = \"[redacted]\"\n"},
		{"API_TOKEN = 'x'", "API_TOKEN = \"[redacted]\""},
		{"password: hunter2\nnext: line", "password: \"[redacted]\"\nnext: line"},
		{`"accessToken":"x\"y","a":"b"`, `"accessToken":"[redacted]","a":"b"`},
		{"GET /?api_key=abc&x=1", `GET /?api_key="[redacted]"&x=1`},
		{"access_token_file = \"/etc/token\"", "access_token_file = \"/etc/token\""},
		{"token_manager = \"GoogleTokenExchange\"", "token_manager = \"GoogleTokenExchange\""},
		{"secret_name: default", "secret_name: default"},
		{"authorization: Bearer abcdefgh", `authorization: "[redacted]" [redacted]`},
		{"said Basic dXNlcjpwYXNz there", "said Basic [redacted] there"},
		{"https://user:pass@host/x", "https://[redacted]@host/x"},
		{"jwt eyJhbGciOi.eyJzdWIi.c2ln end", "jwt [redacted] end"},
		{"-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\nrest",
			"[redacted]\nrest"},
		{"-----BEGIN PRIVATE KEY-----\ncut off", "[redacted]"},
		{"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
			"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"},
	} {
		got := redact(test.in)
		if strings.HasPrefix(test.in, "authorization") {
			if strings.Contains(got, "abcdefgh") {
				t.Errorf("%q became %q", test.in, got)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestRedactJSON(t *testing.T) {
	in := `{"node": {"metadata": {"DB_PASSWORD": "x", "LABELS": {"app": "web"}}, "big": 12345678901234567890},
 "headers": [{"value": "x", "key": "authorization"}, {"key": "x-other", "value": "kept"}],
 "match": {"name": "cookie", "string_match": {"exact": "x"}},
 "source": {"password": {"inline_string": "x"}}, "tokens": ["x"], "token_file": "/kept",
 "text": "https://user:x@host", "log": "-----BEGIN PRIVATE KEY-----\nx"}`
	want := map[string]any{
		"node": map[string]any{"metadata": map[string]any{"DB_PASSWORD": redacted,
			"LABELS": map[string]any{"app": redacted}}, "big": json.Number("12345678901234567890")},
		"headers": []any{map[string]any{"key": "authorization", "value": redacted},
			map[string]any{"key": "x-other", "value": "kept"}},
		"match": map[string]any{"name": "cookie",
			"string_match": map[string]any{"exact": redacted}},
		"source": map[string]any{"password": map[string]any{"inline_string": redacted}},
		"tokens": []any{redacted}, "token_file": "/kept",
		"text": "https://[redacted]@host", "log": redacted,
	}
	var got map[string]any
	decoder := json.NewDecoder(strings.NewReader(redact(in)))
	decoder.UseNumber()
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzRedact(f *testing.F) {
	f.Add(`{"token": "x", "a": [{"key": "cookie", "value": "y"}]}`)
	f.Add("password = \"x\\\"y\"\n-----BEGIN RSA PRIVATE KEY-----\nabc")
	f.Fuzz(func(t *testing.T, text string) {
		got := redact(text)
		if strings.HasPrefix(strings.TrimSpace(text), "{") && json.Valid([]byte(text)) &&
			!json.Valid([]byte(got)) {
			t.Errorf("%q became %q, which is no JSON", text, got)
		}
	})
}
