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
		"%PER_REQUEST_STATE(a)%":            "",
		"100%":                              "begins no command operator",
		"%REQ%":                             "needs a parameter",
		"%REQUEST_ID%":                      "is not a command operator",
		"a\nb":                              "control character",
	} {
		if got, _ := headerValue(value); (got == "") != (want == "") ||
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
		escaped := strings.ReplaceAll(value, "%", "%%")
		if why, _ := headerValue(escaped); !plain && why != "" {
			t.Errorf("%q is text, and refused: %s", escaped, why)
		}
		_, _ = headerValue(value)
	})
}
