package config

import (
	"strconv"
	"strings"
)

// escapes are TOML's escapes of one letter.
const escapes = "b\bt\tn\nf\fr\re\x1b\"\"\\\\"

// unescape resolves the escapes of a basic string; what is no escape stays.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		if digits > 0 && i+digits < len(s) {
			if code, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32); err == nil {
				b.WriteRune(rune(code))
				i += digits
				continue
			}
		}
		for e := 0; e < len(escapes); e += 2 {
			if escapes[e] == s[i] {
				b.WriteByte(escapes[e+1])
			}
		}
	}
	return b.String()
}

// dotted joins the parts of a key as TOML writes it.
func dotted(key []string) string {
	var b strings.Builder
	for i, part := range key {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(bareOrQuoted(part))
	}
	return b.String()
}

func bareOrQuoted(part string) string {
	for i := range len(part) {
		if !isBare(part[i]) {
			return quote(part)
		}
	}
	if part == "" {
		return `""`
	}
	return part
}
