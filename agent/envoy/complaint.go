package envoy

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// logPrefix is what Envoy puts before a message, in its own format or the agent's: [epoch]
// [time][thread][level][component].
var logPrefix = regexp.MustCompile(`^(\[[^\]]*\]\s*)+`)

// maxComplaint bounds what a refusal quotes, in bytes.
const maxComplaint = 1000

// Complaint is what a validation that failed says: from its first error on, without the prefixes of
// log lines and without what it quotes of the configuration.
func Complaint(output []byte) string {
	if argument, why, ok := RefusedArgument(output); ok {
		return argument + ": " + why
	}
	lines := RedactLines(strings.Split(strings.TrimSpace(string(bytes.ToValidUTF8(output, []byte("?")))), "\n"))
	first := slices.IndexFunc(lines, func(line string) bool {
		return strings.Contains(line, "[critical]") || strings.Contains(line, "[error]")
	})
	if first < 0 {
		first = max(0, len(lines)-1)
	}
	said := make([]string, 0, len(lines)-first)
	for _, line := range lines[first:] {
		said = append(said, strings.TrimSpace(logPrefix.ReplaceAllString(line, "")))
	}
	text := strings.Join(said, " ")
	if len(text) > maxComplaint {
		text = strings.ToValidUTF8(text[:maxComplaint], "") + " …"
	}
	return text
}

// parseError is what Envoy says of a command line that it does not understand; an explanation of
// all its flags follows.
var parseError = regexp.MustCompile(`PARSE ERROR:(?: Argument: (.*))?\n\s+(.*)\n`)

// RefusedArgument returns the argument of its command line that Envoy does not understand, and why;
// ok is false if it said no such thing.
func RefusedArgument(output []byte) (argument, why string, ok bool) {
	match := parseError.FindSubmatch(output)
	if match == nil {
		return "", "", false
	}
	argument, why = strings.Trim(strings.TrimSpace(string(match[1])), "()"), strings.TrimSpace(string(match[2]))
	if strings.HasPrefix(why, "Couldn't find match") {
		why = "Envoy has no such flag"
	}
	return cmp.Or(argument, "an argument"), why, true
}
