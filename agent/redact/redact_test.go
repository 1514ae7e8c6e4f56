package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func redacted(t *testing.T, text string, step int) string {
	t.Helper()
	var out bytes.Buffer
	r := New(&out)
	for len(text) > 0 {
		n := min(step, len(text))
		if _, err := r.Write([]byte(text[:n])); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestRedactor(t *testing.T) {
	const gone = `"[redacted]"`
	tests := []struct{ name, in, want string }{
		{"a token", `{"access_token": "x\"y"}`, `{"access_token": ` + gone + `}`},
		{"other spellings",
			`{"accessToken":"a","Access-Token":"b","ACCESS_TOKEN":"c","access_tokens":["d",["e"]]}`,
			`{"accessToken":` + gone + `,"Access-Token":` + gone + `,"ACCESS_TOKEN":` + gone +
				`,"access_tokens":[` + gone + `,[` + gone + `]]}`},
		{"an escaped name", `{"\u0070assword":"a"}`, `{"\u0070assword":` + gone + `}`},
		{"a data source",
			`{"password": {"inline_string": "x"}, "token": {"filename": "/run/token"}}`,
			`{"password": {"inline_string": ` + gone + `}, "token": {"filename": "/run/token"}}`},
		{"a header",
			`{"header": {"key": "Authorization", "value": "Bearer x", "raw_value": "eA=="}, "append": true}`,
			`{"header": {"key": "Authorization", "value": ` + gone + `, "raw_value": ` + gone +
				`}, "append": true}`},
		{"lightstep's",
			`[{"key": "lightstep-access-token", "value": "x"}, {"key": "x-other", "value": "y"}]`,
			`[{"key": "lightstep-access-token", "value": ` + gone +
				`}, {"key": "x-other", "value": "y"}]`},
		{"a header matcher",
			`{"name": "cookie", "string_match": {"exact": "x", "ignore_case": true}}`,
			`{"name": "cookie", "string_match": {"exact": ` + gone + `, "ignore_case": true}}`},
		{"node metadata",
			`{"node": {"id": "a", "metadata": {"A": "x", "B": {"c": ["y", 1, null]}, "D": -2.5e3, "E":true}},
				"other": {"metadata": {"F": "z"}}}`,
			`{"node": {"id": "a", "metadata": {"A": ` + gone + `, "B": {"c": [` + gone + `, ` +
				gone + `, ` + gone +
				`]}, "D": ` + gone + `, "E":` + gone + `}},
				"other": {"metadata": {"F": "z"}}}`},
		{"description stays",
			`{"secret_name": "a", "tls_certificate_sds_secret_configs": [{"name": "default"}], "token_bucket": {"fill_interval": "1s"}, "name": "auth", "secret": {"name": "b", "type": "c"}, "token_file": "/x", "private_key": {"filename": "/k"}}`,
			`{"secret_name": "a", "tls_certificate_sds_secret_configs": [{"name": "default"}], "token_bucket": {"fill_interval": "1s"}, "name": "auth", "secret": {"name": "b", "type": "c"}, "token_file": "/x", "private_key": {"filename": "/k"}}`},
		{"a cluster named auth",
			`{"name": "auth", "type": "STATIC", "endpoints": [{"address": "x"}]}`,
			`{"name": "auth", "type": "STATIC", "endpoints": [{"address": "x"}]}`},
		{"what Envoy quotes",
			`{"details": "a: ggoo.gle/debugonly  \n{ id: \"x\" }\n: why", "goo.gle/debug": "y"}`,
			`{"details": "a: ggoo.gle/debug[redacted]", "goo.gle/debug": "y"}`},
		{"a mark that begins twice, and JSON", `["goo.goo.gle/debugstr x", "` + strings.Repeat("g",
			500) + `goo.gle/debugstr x", "Unable to parse JSON as proto (e): {\"x\"", "z"]`,
			`["goo.goo.gle/debug[redacted]", "` + strings.Repeat("g", 500) +
				`goo.gle/debug[redacted]", "Unable to parse JSON as proto[redacted]", "z"]`},
		{"certificates",
			`{"secret": {"tls_certificate": {"certificate_chain": {"inline_bytes": "Q0VSVA=="}, "private_key": {"inline_bytes": "S0VZ"}}, "validation_context": {"trusted_ca": {"inline_string": "-----BEGIN CERTIFICATE-----\n"}}}}`,
			`{"secret": {"tls_certificate": {"certificate_chain": {"inline_bytes": "Q0VSVA=="}, "private_key": {"inline_bytes": ` + gone + `}}, "validation_context": {"trusted_ca": {"inline_string": "-----BEGIN CERTIFICATE-----\n"}}}}`},
		{"certificates with their key, and too many",
			`{"secret": [{"certificate_chain": {"inline_bytes": "` +
				base64.StdEncoding.EncodeToString([]byte("CERT RSA PRIVATE KEY")) +
				`"}}, {"certificate_chain": {"inline_string": "EC PRIVATE KEY"}}, {"crl": {"inline_bytes": "` +
				strings.Repeat("A", certificatesAtMost+1) + `"}}]}`,
			`{"secret": [{"certificate_chain": {"inline_bytes": ` + gone +
				`}}, {"certificate_chain": {"inline_string": ` + gone +
				`}}, {"crl": {"inline_bytes": ` + gone + `}}]}`},
		{"no JSON", `}}]] "x : , {`, `}}]] "x : , {`},
		{"numbers and literals", `{"password": null, "token": 5, "a": [true]}`,
			`{"password": null, "token": 5, "a": [true]}`},
	}
	for _, test := range tests {
		for _, step := range []int{1, 3, 1 << 20} {
			if diff := cmp.Diff(test.want, redacted(t, test.in, step)); diff != "" {
				t.Errorf("%s, %d bytes at a time: %s", test.name, step, diff)
			}
		}
	}
}

func FuzzRedactor(f *testing.F) {
	f.Add(`{"access_token": "x\"y", "a": ["b", {"key": "cookie", "value": "c"}]}`, 1)
	f.Add(`{"a\\": "b", "\u0041": {}}`, 2)
	f.Fuzz(func(t *testing.T, text string, step int) {
		got := redacted(t, text, max(step, 1))
		if again := redacted(t, got, 7); json.Valid([]byte(text)) && again != got {
			t.Errorf("redacting twice: %q, %q", got, again)
		}
		if json.Valid([]byte(text)) && !json.Valid([]byte(got)) {
			t.Errorf("%q became %q, which is no JSON", text, got)
		}
	})
}
