package validate

import (
	"strings"

	"outrider.org/outrider/agent/discovery/object"
)

const (
	longestName   = 63  // of a DNS label, and of a label without its prefix
	longestPrefix = 253 // of a label
)

func isDNSLabel(text string) bool { return object.IsWord(text, "-", longestName) }

func isLabelValue(text string) bool { return object.IsWord(text, "-_.", longestName) }

// isLabelKey reports whether a text is a label's key: a name, optionally with a prefix and a slash
// before it.
func isLabelKey(text string) bool {
	prefix, name, found := strings.Cut(text, "/")
	if !found {
		return isLabelValue(text)
	}
	return object.IsWord(prefix, "-_.", longestPrefix) && isLabelValue(name)
}

// isWildcardLabel reports whether a text is the first label of a host with a wildcard: * or *-text.
func isWildcardLabel(text string) bool {
	rest, found := strings.CutPrefix(text, "*")
	return found && isDNSLabel("x"+rest)
}
