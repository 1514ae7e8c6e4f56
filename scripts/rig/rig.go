// Package rig runs the whole of Outrider for tests and benches: the built programs, a configuration in a folder of its own with
// ports of its own, real Envoys, a backend, and faults.
package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// Ports are the TCP ports of one rig, all on loopback.
type Ports struct {
	Admin, Status, Ready, Prometheus int // Outrider's own
	HTTP, TCP                        int // Envoy's listeners
	Backend, Echo                    int // what is behind them
}

// Rig is one Outrider with everything it needs.
type Rig struct {
	Programs Programs
	Dir      string // of everything; Dir/outrider.toml, Dir/conf.d, Dir/mesh.d, Dir/run
	Ports    Ports

	t       testing.TB
	backend *exec.Cmd
	mu      sync.Mutex
	daemon  *Daemon
}

// Options of a rig.
type Options struct {
	Race bool              // the agent is built with the race detector
	TOML string            // merged over the rig's own configuration
	Mesh map[string]string // files of mesh.d, beside the rig's own web.yaml
}

// New makes a rig and starts its backend. After the test everything of it is gone, and a process that is still alive fails
// the test.
func New(t testing.TB, options Options) *Rig {
	t.Helper()
	r := &Rig{t: t, Programs: Build(t, options.Race), Dir: parts.ShortDir(t)}
	if err := os.Chmod(r.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, port := range []*int{&r.Ports.Admin, &r.Ports.Status, &r.Ports.Ready, &r.Ports.Prometheus, &r.Ports.HTTP,
		&r.Ports.TCP, &r.Ports.Backend, &r.Ports.Echo} {
		*port = FreePort(t)
	}
	r.Write("outrider.toml", fmt.Sprintf(`
[paths]
runtime_dir = %q
state_dir = %q
[envoy]
binary = %q
concurrency = 2
admin_port = %d
drain_duration = "5s"
parent_shutdown_duration = "8s"
termination_drain_duration = "1s"
live_timeout = "20s"
user = ""
[status]
address = "127.0.0.1:%d"
ready_port = %d
[discovery]
files = [%q]
[telemetry]
prometheus_address = "127.0.0.1:%d"
[log]
level = "debug"
`, filepath.Join(r.Dir, "run"), filepath.Join(r.Dir, "state"), parts.Envoy(t), r.Ports.Admin, r.Ports.Status, r.Ports.Ready,
		filepath.Join(r.Dir, "mesh.d"), r.Ports.Prometheus))
	r.Write("conf.d/50-test.toml", options.TOML)
	r.Write("mesh.d/web.yaml", r.WebYAML(r.Ports.Backend))
	for name, text := range options.Mesh {
		r.Write(filepath.Join("mesh.d", name), text)
	}
	r.startBackend()
	t.Cleanup(r.cleanup)
	return r
}

// WebYAML is the service the rig's load goes to: HTTP and TCP on the rig's ports, from the backend on the given port.
func (r *Rig) WebYAML(backend int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: web
  namespace: default
spec:
  hosts: [web.test]
  ports:
  - {number: %d, name: http, protocol: HTTP}
  - {number: %d, name: tcp, protocol: TCP}
  resolution: STATIC
  endpoints:
  - address: 127.0.0.1
    ports: {http: %d, tcp: %d}
`, r.Ports.HTTP, r.Ports.TCP, backend, r.Ports.Echo)
}

var ports struct {
	sync.Mutex
	given map[int]bool
}

// FreePort is a TCP port that was free a moment ago and was not given to anyone in this process, below the ephemeral range so that
// no outgoing connection takes it.
func FreePort(t testing.TB) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.given == nil {
		ports.given = map[int]bool{}
	}
	start := 10000 + os.Getpid()%20000
	for i := range 20000 {
		port := 10000 + (start+i*7)%22000
		if ports.given[port] {
			continue
		}
		listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		_ = listener.Close()
		ports.given[port] = true
		return port
	}
	t.Fatal("no free port")
	return 0
}

// Write writes a file of the rig by rename, as careful editors do.
func (r *Rig) Write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		r.t.Fatal(err)
	}
}

// Set replaces the rig's drop-in.
func (r *Rig) Set(toml string) { r.Write("conf.d/50-test.toml", toml) }

func (r *Rig) startBackend() {
	r.t.Helper()
	r.backend = exec.Command(r.Programs.Path("backend"), "-http", fmt.Sprintf("127.0.0.1:%d", r.Ports.Backend),
		"-tcp", fmt.Sprintf("127.0.0.1:%d", r.Ports.Echo), "-name", "web")
	r.backend.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.backend.Start(); err != nil {
		r.t.Fatal(err)
	}
	Eventually(r.t, 5*time.Second, "the backend listens", func() bool {
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Ports.Backend))
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
}

// Daemon is a running outriderd.
type Daemon struct {
	Process *os.Process
	Started time.Time
	done    chan struct{}
	exit    int // valid once done is closed; -signal if it was killed
	output  *tail
}

// Start starts outriderd and does not wait for anything.
func (r *Rig) Start(arguments ...string) *Daemon {
	r.t.Helper()
	d := &Daemon{done: make(chan struct{}), output: &tail{}, Started: time.Now()}
	command := exec.Command(r.Programs.Path("outriderd"), append([]string{"--config", filepath.Join(r.Dir, "outrider.toml")}, arguments...)...)
	command.Stdout, command.Stderr = d.output, d.output
	command.WaitDelay = time.Second // the keeper may hold the pipes
	command.Env = append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66")
	if err := command.Start(); err != nil {
		r.t.Fatal(err)
	}
	d.Process = command.Process
	go func() {
		err := command.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			d.exit = exit.ExitCode()
			if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
				d.exit = -int(status.Signal())
			}
		}
		close(d.done)
	}()
	r.mu.Lock()
	r.daemon = d
	r.mu.Unlock()
	return d
}

// StartReady starts outriderd and waits until it is ready.
func (r *Rig) StartReady() *Daemon {
	r.t.Helper()
	d := r.Start()
	r.WaitReady(30 * time.Second)
	return d
}

// Wait waits for the end of outriderd and returns its exit code (minus the signal, if one killed it).
func (d *Daemon) Wait(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-d.done:
		return d.exit
	case <-time.After(limit):
		t.Fatalf("outriderd did not end within %v; its last lines:\n%s", limit, d.Output())
		return 0
	}
}

// Running tells whether outriderd still runs.
func (d *Daemon) Running() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// Output is the last part of what outriderd logged.
func (d *Daemon) Output() string { return d.output.String() }

// Ready asks /healthz/ready; the text is the reason when not.
func (r *Rig) Ready() (bool, string) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", r.Ports.Status))
	if err != nil {
		return false, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode == http.StatusOK, string(body)
}

// WaitReady waits until /healthz/ready says 200.
func (r *Rig) WaitReady(limit time.Duration) {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		ready, reason := r.Ready()
		if ready {
			return
		}
		r.mu.Lock()
		d := r.daemon
		r.mu.Unlock()
		if d != nil && !d.Running() {
			r.t.Fatalf("outriderd ended with %d; its last lines:\n%s", d.exit, d.Output())
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("not ready within %v: %s\n%s", limit, reason, d.Output())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Result is what a run of the command line gave.
type Result struct {
	Out, Err string
	Exit     int
}

// Outrider runs the command line against the rig's agent.
func (r *Rig) Outrider(arguments ...string) Result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, r.Programs.Path("outrider"), append([]string{"--socket", filepath.Join(r.Dir, "run", "outrider.sock")}, arguments...)...)
	var out, errout bytes.Buffer
	command.Stdout, command.Stderr = &out, &errout
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("outrider %v: %v", arguments, err)
	}
	return Result{out.String(), errout.String(), command.ProcessState.ExitCode()}
}

// JSON runs a command with --json and decodes its output.
func (r *Rig) JSON(into any, arguments ...string) {
	r.t.Helper()
	result := r.Outrider(append(arguments, "--json")...)
	if result.Exit != 0 {
		r.t.Fatalf("outrider %v: exit %d: %s", arguments, result.Exit, result.Err)
	}
	if err := json.Unmarshal([]byte(result.Out), into); err != nil {
		r.t.Fatalf("outrider %v: %v: %s", arguments, err, result.Out)
	}
}

// Get sends one request through Envoy to the rig's service.
func (r *Rig) Get(path string) (int, string, error) {
	return r.GetHost("web.test", r.Ports.HTTP, path)
}

// GetHost sends one request with a Host header of its own on a connection of its own.
func (r *Rig) GetHost(host string, port int, path string) (int, string, error) {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return 0, "", err
	}
	request.Host = host
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// Pids returns the processes whose command line holds the rig's folder and the given program's name: Envoys, keepers.
func (r *Rig) Pids(program string) []int {
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

func (r *Rig) cleanup() {
	r.mu.Lock()
	d := r.daemon
	r.mu.Unlock()
	if d != nil && d.Running() {
		_ = d.Process.Signal(syscall.SIGTERM)
		_ = d.Process.Signal(syscall.SIGTERM) // the second one: now
		select {
		case <-d.done:
		case <-time.After(15 * time.Second):
			r.t.Errorf("outriderd did not end on two SIGTERMs; its last lines:\n%s", d.Output())
			_ = d.Process.Kill()
		}
	}
	if r.t.Failed() && d != nil {
		r.t.Logf("outriderd's last lines:\n%s", d.Output())
	}
	for _, program := range []string{"outrider-keeper", "envoy"} {
		for _, pid := range r.Pids(program) {
			if d != nil && d.exit == 0 {
				r.t.Errorf("%s %d is left behind", program, pid)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = r.backend.Process.Kill()
	_ = r.backend.Wait()
}

// Eventually polls until true, for at most limit.
func Eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// tail keeps the last part of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 256 << 10

func (b *tail) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, text...)
	if len(b.text) > 2*tailBytes {
		b.text = append([]byte(nil), b.text[len(b.text)-tailBytes:]...)
	}
	return len(text), nil
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}
