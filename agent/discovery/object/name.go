package object

import "strings"

// IsWord reports whether text has at most longest bytes, which are ASCII letters and digits, and
// between the first and the last one also characters of between.
func IsWord(text, between string, longest int) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return text != "" && len(text) <= longest && strings.Trim(text, letters+between) == "" &&
		strings.Contains(letters, text[:1]) && strings.Contains(letters, text[len(text)-1:])
}
