package validate

import (
	"strings"

	"outrider.org/outrider/agent/discovery/object"
)

const (
	longestName   = 63  // bytes of a DNS label, and of the name in a label's key
	longestPrefix = 253 // bytes of the prefix in a label's key
)

func isDNSLabel(text string) bool { return object.IsIdentifier(text, "-", longestName) }

func isLabelValue(text string) bool { return object.IsIdentifier(text, "-_.", longestName) }

// isLabelKey reports whether a text is the key of a label: a name, or a prefix, a slash and a name.
func isLabelKey(text string) bool {
	prefix, name, found := strings.Cut(text, "/")
	if !found {
		return isLabelValue(text)
	}
	return object.IsIdentifier(prefix, "-_.", longestPrefix) && isLabelValue(name)
}

// isWildcardLabel reports whether a text may be the first label of a wildcard host: * or *-text.
func isWildcardLabel(text string) bool {
	rest, found := strings.CutPrefix(text, "*")
	return found && isDNSLabel("x"+rest)
}
