package epoch

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// validate has Envoy itself check the bootstrap. It catches what cannot be parsed and unknown clusters of routes, not a port
// that is in use.
func (s *Supervisor) validate(ctx context.Context, keeper Keeper, spec *Spec, launch Launch) error {
	command, err := spec.Validation(launch)
	if err != nil {
		return fmt.Errorf("build the command line that validates epoch %d: %w", launch.Number, err)
	}
	running, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	result, err := keeper.Run(running, command)
	if err != nil {
		return fmt.Errorf("validate the bootstrap of epoch %d: %w", launch.Number, err)
	}
	if result.Exit != 0 {
		return fmt.Errorf("Envoy does not accept %s: %s", launch.BootstrapPath, complaint(result.Output))
	}
	return nil
}

// logPrefix is what Envoy puts before a message, in its own format or the agent's: [epoch] [time][thread][level][component].
var logPrefix = regexp.MustCompile(`^(\[[^\]]*\]\s*)+`)

// maxComplaint bounds what a refusal quotes, in bytes.
const maxComplaint = 1000

// complaint is what a validation that failed says: from its first error on, without the prefixes of log lines.
func complaint(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(bytes.ToValidUTF8(output, []byte("?")))), "\n")
	first := slices.IndexFunc(lines, func(line string) bool {
		return strings.Contains(line, "[critical]") || strings.Contains(line, "[error]")
	})
	if first < 0 {
		first = len(lines) - 1
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
