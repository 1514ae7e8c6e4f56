package capture

import (
	"os/exec"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// inNetwork is parts.InNetwork, parallel to other tests, after it has built the helper that newRig
// runs.
func inNetwork(t *testing.T) bool {
	t.Helper()
	t.Parallel()
	return inNetworkAlone(t)
}

// inNetworkAlone is inNetwork for load tests, beside which no other test may run.
func inNetworkAlone(t *testing.T) bool {
	t.Helper()
	parts.BuildProgram(t, "outrider-capture") // built once: each test is a process of its own
	return parts.InNetwork(t)
}

func ip(t *testing.T, arguments string) {
	t.Helper()
	run(t, "", "ip", strings.Fields(arguments)...)
}

func run(t *testing.T, input, program string, arguments ...string) string {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Stdin = strings.NewReader(input)
	said, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(arguments, " "), err, said)
	}
	return string(said)
}
