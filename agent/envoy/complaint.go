package envoy

import (
	"bytes"
	"slices"
	"strings"

	"outrider.org/outrider/agent/lazy"
)

// logPrefix is what Envoy puts before a message, in its own format or the agent's: [epoch] [time][thread][level][component].
var logPrefix = lazy.Regexp(`^(\[[^\]]*\]\s*)+`)

// maxComplaint bounds what a refusal quotes, in bytes.
const maxComplaint = 1000

// Complaint is what a validation that failed says: from its first error on, without the prefixes of log lines and without what it
// quotes of the configuration.
func Complaint(output []byte) string {
	lines := Discreet(strings.Split(strings.TrimSpace(string(bytes.ToValidUTF8(output, []byte("?")))), "\n"))
	first := slices.IndexFunc(lines, func(line string) bool {
		return strings.Contains(line, "[critical]") || strings.Contains(line, "[error]")
	})
	if first < 0 {
		first = max(0, len(lines)-1)
	}
	said := make([]string, 0, len(lines)-first)
	for _, line := range lines[first:] {
		said = append(said, strings.TrimSpace(logPrefix().ReplaceAllString(line, "")))
	}
	text := strings.Join(said, " ")
	if len(text) > maxComplaint {
		text = strings.ToValidUTF8(text[:maxComplaint], "") + " …"
	}
	return text
}
