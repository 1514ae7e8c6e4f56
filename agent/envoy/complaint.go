package envoy

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// logPrefix matches the prefix of a message in Envoy's format or in logFormat: [epoch]
// [time][thread][level][component].
var logPrefix = regexp.MustCompile(`^(\[[^\]]*\]\s*)+`)

// maxComplaint bounds the result of ValidationError, in bytes.
const maxComplaint = 1000

// ValidationError returns the reason why Envoy's validation failed: its output from the first error
// on, without log prefixes and quotes of the configuration.
func ValidationError(output []byte) string {
	if argument, why, ok := RefusedArgument(output); ok {
		return argument + ": " + why
	}
	lines := RedactLines(
		strings.Split(strings.TrimSpace(string(bytes.ToValidUTF8(output, []byte("?")))), "\n"))
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

// parseError matches Envoy's error for an invalid command line; its usage text follows.
var parseError = regexp.MustCompile(`PARSE ERROR:(?: Argument: (.*))?\n\s+(.*)\n`)

// RefusedArgument returns the argument that Envoy's command-line parser refused, and the reason. ok
// is false if the output has no such error.
func RefusedArgument(output []byte) (argument, why string, ok bool) {
	match := parseError.FindSubmatch(output)
	if match == nil {
		return "", "", false
	}
	argument, why = strings.Trim(strings.TrimSpace(string(match[1])), "()"),
		strings.TrimSpace(string(match[2]))
	if strings.HasPrefix(why, "Couldn't find match") {
		why = "Envoy has no such flag"
	}
	return cmp.Or(argument, "an argument"), why, true
}
