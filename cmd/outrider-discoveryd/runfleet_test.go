package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// output collects the output of a process. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// TestRunFleet runs scripts/run-fleet, as `make run-fleet` does, in its own network namespace. It
// tries the commands that the script suggests, and ends the script as Ctrl-C does.
func TestRunFleet(t *testing.T) {
	t.Parallel()
	build, err := parts.RunBuildScript(nil, "programs", "./cmd/outriderd", "./cmd/outrider",
		"./cmd/outrider-keeper", "./cmd/outrider-bootstrap", "./cmd/outrider-probe",
		"./cmd/outrider-discoveryd", "./scripts/backend/cmd/backend")
	if err != nil {
		t.Fatal(err)
	}
	if !parts.RerunInOwnNetwork(t) {
		return
	}
	folder := filepath.Join(parts.ShortDir(t), "fleet")
	script := exec.Command(filepath.Join(parts.RepositoryRoot(), "scripts", "run-fleet"))
	script.Env = append(os.Environ(), "OUTRIDER_RUN_DIR="+folder, "OUTRIDER_BUILD="+build)
	script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var said output
	script.Stdout, script.Stderr = &said, &said
	if err := script.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- script.Wait() }()
	t.Cleanup(func() {
		_ = script.Process.Signal(syscall.SIGTERM)
		if t.Failed() {
			t.Log(said.String())
		}
	})
	parts.EventuallyWithObservation(t, 2*time.Minute, "the fleet serves", func() (bool, string) {
		return strings.Contains(said.String(), "The fleet serves."), said.String()
	})
	answers := func(port int, path string, want ...string) {
		t.Helper()
		parts.EventuallyWithObservation(t, time.Minute, fmt.Sprintf("%s answers at port %d", want, port),
			func() (bool, string) {
				got := map[string]bool{}
				for range 10 {
					status, body := ask("GET",
						fmt.Sprintf("http://127.0.0.1:%d%s", port, path), "", "")
					got[fmt.Sprint(status, " ", strings.Fields(body))] = true
				}
				for _, name := range want {
					if !strings.Contains(fmt.Sprint(got), name) {
						return false, fmt.Sprint(got)
					}
				}
				return len(got) == len(want), fmt.Sprint(got)
			})
	}
	answers(8081, "/", "blue", "green")
	answers(8082, "/api", "api")
	const maintenance = "http://127.0.0.1:8500/v1/agent/service/maintenance/green?enable=true"
	if status, body := ask("PUT", maintenance, "", ""); status != http.StatusOK {
		t.Errorf("maintenance: %d %s", status, body)
	}
	answers(8081, "/", "blue")
	answers(8082, "/", "blue")
	if err := script.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("run-fleet ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("run-fleet does not end")
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
}
