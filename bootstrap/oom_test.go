package bootstrap_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// If memory runs out, the kernel must kill outrider-bootstrap and not the agent or an Envoy.
func TestPreferOOMKill(t *testing.T) {
	command := exec.Command(program)
	question, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = question.Close()
		_ = command.Wait() // an error is expected: its input is empty
	})
	path := filepath.Join("/proc", strconv.Itoa(command.Process.Pid), "oom_score_adj")
	parts.Eventually(t, time.Minute, "oom_score_adj is 1000", func() bool {
		score, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(score)) == "1000"
	})
}
