package config

import "strings"

// dotted joins the parts of a key, quoted where TOML requires it.
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
	if part == "" || strings.ContainsFunc(part, func(r rune) bool { return !isBare(r) }) {
		return quote(part)
	}
	return part
}

// isBare reports whether a key may contain r without quotes.
func isBare(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r == '_' || r == '-'
}
