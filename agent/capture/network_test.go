package capture

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// insideEnv is set if the test runs in a network namespace of its own.
const insideEnv = "OUTRIDER_TEST_NETWORK"

// inNetwork reports whether the test runs in a network namespace of its own. If not, it runs the
// test again in one. It requires root.
func inNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) == "" {
		command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		command.Env = append(os.Environ(), insideEnv+"=1")
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET,
			Pdeathsig: syscall.SIGKILL}
		said, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("in a network of its own: %v\n%s", err, said)
		}
		t.Logf("in a network of its own:\n%s", said)
		return false
	}
	ip(t, "link set lo up")
	return true
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
