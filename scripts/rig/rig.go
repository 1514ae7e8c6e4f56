// Package rig runs a complete Outrider for tests and benchmarks: built programs with their own
// configuration directory and ports, real Envoys and a backend.
package rig

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// Ports are the TCP ports of a rig, all on loopback.
type Ports struct {
	Admin, Status, Ready, Prometheus int // ports of Outrider
	HTTP, TCP                        int // ports of Envoy's listeners
	Backend, Echo                    int // ports of the backend
}

// Rig is an Outrider with its own directory, ports and backend.
type Rig struct {
	Programs Programs
	Dir      string // contains outrider.toml, conf.d, mesh.d and run
	Ports    Ports
	// Environment contains additional variables, as NAME=VALUE, for agents that are started later.
	Environment []string

	t       testing.TB
	backend *exec.Cmd
	ended   sync.Once
	mu      sync.Mutex
	daemon  *Daemon
}

// Options are the options of a rig.
type Options struct {
	Race bool              // build the agent with the race detector
	TOML string            // content of a drop-in, which overrides the rig's outrider.toml
	Mesh map[string]string // additional files of mesh.d, by name
}

// New creates a rig and starts its backend. If a process of the rig is left when the test ends, the
// test fails.
func New(t testing.TB, options Options) *Rig {
	t.Helper()
	r := &Rig{t: t, Programs: Build(t, options.Race), Dir: parts.ShortDir(t)}
	if err := os.Chmod(r.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, port := range []*int{&r.Ports.Admin, &r.Ports.Status, &r.Ports.Ready,
		&r.Ports.Prometheus, &r.Ports.HTTP,
		&r.Ports.TCP, &r.Ports.Backend, &r.Ports.Echo} {
		*port = parts.FreePort(t)
	}
	r.WriteFile("outrider.toml", fmt.Sprintf(`
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
debug_address = ""
[telemetry]
prometheus_address = "127.0.0.1:%d"
[log]
level = "debug"
[bus]
enabled = false
`, filepath.Join(r.Dir, "run"), filepath.Join(r.Dir, "state"), parts.EnvoyPath(t), r.Ports.Admin,
		r.Ports.Status, r.Ports.Ready,
		filepath.Join(r.Dir, "mesh.d"), r.Ports.Prometheus))
	r.WriteFile("conf.d/50-test.toml", options.TOML)
	r.WriteFile("mesh.d/web.yaml", r.WebServiceYAML(r.Ports.Backend))
	for name, text := range options.Mesh {
		r.WriteFile(filepath.Join("mesh.d", name), text)
	}
	r.startBackend()
	t.Cleanup(r.End)
	return r
}

// WebServiceYAML returns a mesh file for the service web.test, with HTTP and TCP on the rig's
// ports. Its HTTP endpoint is the port backend.
func (r *Rig) WebServiceYAML(backend int) string {
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

// WriteFile writes a file in the rig's directory. It renames a temporary file, as many editors do.
func (r *Rig) WriteFile(name, text string) {
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

// SetTOML replaces the content of the rig's drop-in.
func (r *Rig) SetTOML(toml string) { r.WriteFile("conf.d/50-test.toml", toml) }

func (r *Rig) startBackend() {
	r.t.Helper()
	r.backend = exec.Command(r.Programs.Path("backend"), "-http", fmt.Sprintf("127.0.0.1:%d",
		r.Ports.Backend),
		"-tcp", fmt.Sprintf("127.0.0.1:%d", r.Ports.Echo), "-name", "web")
	r.backend.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.backend.Start(); err != nil {
		r.t.Fatal(err)
	}
	Eventually(r.t, time.Minute, "the backend listens", func() bool {
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Ports.Backend))
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
}

// End stops all processes of the rig. Without a call, they are stopped when the test ends. It may
// be called again.
func (r *Rig) End() { r.ended.Do(r.cleanup) }

// leftTime bounds the time between the exit of the agent and the exit of its keeper.
const leftTime = 20 * time.Second

func (r *Rig) cleanup() {
	d := r.Daemon()
	if d != nil && d.Running() {
		// A second SIGTERM forces the exit. The kernel would merge it with the first one while that
		// is pending, so it is sent after a pause, and followed by a third one.
		for _, patience := range []time.Duration{50 * time.Millisecond, 5 * time.Second,
			10 * time.Second} {
			_ = d.Process.Signal(syscall.SIGTERM)
			select {
			case <-d.done:
			case <-time.After(patience):
				continue
			}
			break
		}
		if d.Running() {
			r.t.Errorf("outriderd did not end on three SIGTERMs; its last lines:\n%s", d.Output())
			_ = d.Process.Kill()
		}
	}
	if r.t.Failed() && d != nil {
		r.t.Logf("outriderd's last lines:\n%s", d.Output())
	}
	orderly := d != nil && !d.Running() && d.exit == 0
	for end := time.Now().Add(leftTime); orderly && len(r.left()) > 0 && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	for _, pid := range r.left() {
		if orderly {
			r.t.Errorf("process %d is left behind", pid)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = r.backend.Process.Kill()
	_ = r.backend.Wait()
}

// left returns the PIDs of the rig's processes that still run.
func (r *Rig) left() []int {
	return append(r.ProcessIDs("outrider-keeper"),
		r.ProcessIDs("envoy")...)
}
