package capture

import (
	"os/exec"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// inNetwork builds outrider-capture, which newRig runs, calls parts.RerunInOwnNetwork and returns
// its result. The test runs in parallel to others.
func inNetwork(t *testing.T) bool {
	t.Helper()
	t.Parallel()
	return inNetworkAlone(t)
}

// inNetworkAlone is like inNetwork, but for load tests, which do not run in parallel to other
// tests.
func inNetworkAlone(t *testing.T) bool {
	t.Helper()
	parts.BuildProgram(t, "outrider-capture") // once, before each test runs as a process of its own
	return parts.RerunInOwnNetwork(t)
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
