package bootstrap_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Where memory runs out the kernel is to end outrider-bootstrap, not the agent or an Envoy.
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
		_ = command.Wait() // it got no question
	})
	path := filepath.Join("/proc", strconv.Itoa(command.Process.Pid), "oom_score_adj")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		score, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(score)) == "1000" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("oom_score_adj is %s", score)
		}
	}
}
