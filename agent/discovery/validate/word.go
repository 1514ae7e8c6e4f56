package validate

import "strings"

// word describes texts that begin and end with an ASCII letter or digit. A regular expression with
// a repetition of up to 63 or 253 would occupy 60 KB for the lifetime of the agent.
type word struct {
	// between has the permitted characters between the first and the last one, in addition to
	// letters and digits.
	between string
	most    int // longest length in characters
}

// MatchString reports whether a text is such a word.
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

// Parts of a label's key, and a label's value.
var (
	labelPrefix = word{"-_.", 253}
	labelName   = word{"-_.", 63}
)

// labelKey reports whether a text is a label's key: a name, optionally with a prefix and a slash
// before it.
func labelKey(text string) bool {
	prefix, name, found := strings.Cut(text, "/")
	if !found {
		return labelName.MatchString(text)
	}
	return labelPrefix.MatchString(prefix) && labelName.MatchString(name)
}

// wildcardLabel reports whether a text is the first label of a host with a wildcard: * or *-text.
func wildcardLabel(text string) bool {
	rest, found := strings.CutPrefix(text, "*")
	return found && (rest == "" || len(rest) < dnsLabel.most &&
		isLetterOrDigit(rest[len(rest)-1]) && dnsLabel.holds(rest))
}
