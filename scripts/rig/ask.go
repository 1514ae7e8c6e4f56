package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// CommandResult is the result of a command of outrider(1).
type CommandResult struct {
	Stdout, Stderr string
	ExitCode       int
}

// RunOutrider runs a command of outrider(1) against the rig's agent.
func (r *Rig) RunOutrider(arguments ...string) CommandResult {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, r.Programs.Path("outrider"),
		append([]string{"--socket", filepath.Join(r.Dir, "run", "outrider.sock")}, arguments...)...)
	var out, errout bytes.Buffer
	command.Stdout, command.Stderr = &out, &errout
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("outrider %v: %v", arguments, err)
	}
	return CommandResult{out.String(), errout.String(), command.ProcessState.ExitCode()}
}

// RunOutriderJSON runs a command of outrider(1) with --json and decodes its output. A failure fails
// the test.
func (r *Rig) RunOutriderJSON(into any, arguments ...string) {
	r.t.Helper()
	result := r.RunOutrider(append(arguments, "--json")...)
	if result.ExitCode != 0 {
		r.t.Fatalf("outrider %v: exit %d: %s", arguments, result.ExitCode, result.Stderr)
	}
	if err := json.Unmarshal([]byte(result.Stdout), into); err != nil {
		r.t.Fatalf("outrider %v: %v: %s", arguments, err, result.Stdout)
	}
}

// GetThroughEnvoy sends a request for web.test through Envoy to the rig's backend. It returns the
// status and the body.
func (r *Rig) GetThroughEnvoy(path string) (int, string, error) {
	return r.GetHostThroughEnvoy("web.test", r.Ports.HTTP, path)
}

// GetSlowThroughEnvoy is like GetThroughEnvoy with a longer timeout, for slow responses such as
// that of /sleep/8s.
func (r *Rig) GetSlowThroughEnvoy(path string) (int, string, error) {
	return get("web.test", r.Ports.HTTP, path, time.Minute)
}

// GetHostThroughEnvoy is like GetThroughEnvoy with another Host header and port.
func (r *Rig) GetHostThroughEnvoy(host string, port int, path string) (int, string, error) {
	return get(host, port, path, 5*time.Second)
}

func get(host string, port int, path string, limit time.Duration) (int, string, error) {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port,
		path), nil)
	if err != nil {
		return 0, "", err
	}
	request.Host = host
	client := http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// ProcessIDs returns the PIDs of those processes of a program, such as envoy or outrider-keeper,
// whose command line contains the rig's directory.
func (r *Rig) ProcessIDs(program string) []int {
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		name, _, _ := strings.Cut(string(line), "\x00")
		if filepath.Base(name) == program && strings.Contains(string(line), r.Dir+"/") {
			found = append(found, pid)
		}
	}
	return found
}

// Eventually polls until condition returns true, and fails the test if that takes longer than
// limit.
func Eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	parts.Eventually(t, limit, what, condition)
}
