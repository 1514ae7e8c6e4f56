package object

import "strings"

// IsIdentifier reports whether text has 1 to longest ASCII letters and digits. It may also contain
// the characters in between, except as first or last character.
func IsIdentifier(text, between string, longest int) bool {
	if text == "" || len(text) > longest || !isLetterOrDigit(text[0]) ||
		!isLetterOrDigit(text[len(text)-1]) {
		return false
	}
	for i := range len(text) {
		if !isLetterOrDigit(text[i]) && strings.IndexByte(between, text[i]) < 0 {
			return false
		}
	}
	return true
}

func isLetterOrDigit(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
