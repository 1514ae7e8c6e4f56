package validate

import "strings"

// word is a text that begins and ends with an ASCII letter or digit. It is no regular expression,
// because one that counts to 63, or to 253, takes 60 KB for as long as the agent runs.
type word struct {
	// what may stand between the first and the last character, beside letters and digits
	between string
	most    int // characters
}

// MatchString says whether a text is such a word.
func (w word) MatchString(text string) bool {
	if text == "" || len(text) > w.most || !isLetterOrDigit(text[0]) ||
		!isLetterOrDigit(text[len(text)-1]) {
		return false
	}
	return w.holds(text)
}

func (w word) holds(text string) bool {
	for i := range len(text) {
		if !isLetterOrDigit(text[i]) && strings.IndexByte(w.between, text[i]) < 0 {
			return false
		}
	}
	return true
}

func isLetterOrDigit(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// The parts of a label's key, and a label's value.
var (
	labelPrefix = word{"-_.", 253}
	labelName   = word{"-_.", 63}
)

// labelKey says whether a text is a label's key: a name, perhaps with a prefix and a slash before
// it.
func labelKey(text string) bool {
	prefix, name, found := strings.Cut(text, "/")
	if !found {
		return labelName.MatchString(text)
	}
	return labelPrefix.MatchString(prefix) && labelName.MatchString(name)
}

// wildcardLabel says whether a text is the first label of a host with a wildcard: * or *-text.
func wildcardLabel(text string) bool {
	rest, found := strings.CutPrefix(text, "*")
	return found && (rest == "" || len(rest) < dnsLabel.most &&
		isLetterOrDigit(rest[len(rest)-1]) && dnsLabel.holds(rest))
}
