package object

import "strings"

// IsIdentifier reports whether text consists of 1 to maxLength ASCII letters and digits.
// The characters in inner are allowed as well, but not as its first or last one.
func IsIdentifier(text, inner string, maxLength int) bool {
	if text == "" || len(text) > maxLength || !isLetterOrDigit(text[0]) ||
		!isLetterOrDigit(text[len(text)-1]) {
		return false
	}
	for i := range len(text) {
		if !isLetterOrDigit(text[i]) && strings.IndexByte(inner, text[i]) < 0 {
			return false
		}
	}
	return true
}

func isLetterOrDigit(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
