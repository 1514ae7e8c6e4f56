package validate

import (
	"strings"
	"testing"
)

func TestHeaderValues(t *testing.T) {
	for value, want := range map[string]string{
		"":                                  "",
		"text, and 100%%":                   "",
		"%REQ(:PATH)%":                      "",
		"a %REQ(X?:PATH):10% b %PROTOCOL%c": "",
		`%DYNAMIC_METADATA(["a", "b"])%`:    "",
		"%START_TIME(%s.%3f)%":              "",
		"%START_TIME%%%":                    "",
		"100%":                              "a single %",
		"%%%":                               "a single %",
		"%REQ(:PATH%":                       "without )",
		"%REQ(:PATH)":                       "a single %",
		"%REQ%":                             "needs an argument",
		"%HOSTNAME:7%":                      "no length",
		"%REQUEST_ID%":                      "nothing that Envoy knows",
		"50% and 60%":                       "stands for something",
		"a\nb":                              "control character",
	} {
		if got := whyNoHeaderValue(value); (got == "") != (want == "") ||
			!strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", value, got, want)
		}
	}
}

func FuzzHeaderValue(f *testing.F) {
	for _, seed := range []string{"", "%%", "%REQ(:PATH)%", "%START_TIME(%s)%", "%(", "%a(b)",
		"%%%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		plain := strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f })
		if escaped := strings.ReplaceAll(value, "%", "%%"); !plain &&
			whyNoHeaderValue(escaped) != "" {
			t.Errorf("%q is text, and refused: %s", escaped, whyNoHeaderValue(escaped))
		}
		_ = whyNoHeaderValue(value)
	})
}
