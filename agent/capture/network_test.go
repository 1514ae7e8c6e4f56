package capture

import (
	"os/exec"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// inNetwork is parts.InNetwork, beside other tests, with the helper that newRig runs.
func inNetwork(t *testing.T) bool {
	t.Helper()
	t.Parallel()
	return inNetworkAlone(t)
}

// inNetworkAlone is inNetwork while no other test runs: for tests of load.
func inNetworkAlone(t *testing.T) bool {
	t.Helper()
	parts.BuildProgram(t, "outrider-capture") // for all tests, which are processes of their own
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
