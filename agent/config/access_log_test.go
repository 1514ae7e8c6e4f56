package config

import "testing"

func FuzzLogFormat(f *testing.F) {
	for _, seed := range []string{"", "%", "%%", "%REQ(a)%", `{"a": "%DURATION%"}`,
		`{"a": [1, {"b": "%"}]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(_ *testing.T, format string) { logFormat(format) })
}
