package rig

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Daemon is a running outriderd.
type Daemon struct {
	Process *os.Process
	Started time.Time
	done    chan struct{}
	exit    int // exit code, or minus the signal that killed it; valid once done is closed
	output  *tail
}

// Start starts outriderd without waiting until it is ready.
func (r *Rig) Start(arguments ...string) *Daemon {
	r.t.Helper()
	d, err := r.start(arguments...)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *Rig) start(arguments ...string) (*Daemon, error) {
	d := &Daemon{done: make(chan struct{}), output: &tail{}, Started: time.Now()}
	command := exec.Command(r.Programs.Path("outriderd"),
		append([]string{"--config", filepath.Join(r.Dir, "outrider.toml")}, arguments...)...)
	command.Stdout, command.Stderr = d.output, d.output
	command.WaitDelay = time.Second // the keeper may hold the pipes of stdout and stderr open
	command.Env = append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0")
	command.Env = append(command.Env, r.Environment...)
	if err := command.Start(); err != nil {
		return nil, err
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
	return d, nil
}

// Daemon returns the outriderd that was started last, or nil before the first start.
func (r *Rig) Daemon() *Daemon {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.daemon
}

// StartReady starts outriderd and waits until it is ready.
func (r *Rig) StartReady() *Daemon {
	r.t.Helper()
	d := r.Start()
	r.WaitReady(30 * time.Second)
	return d
}

// Wait waits until outriderd has exited. It returns the exit code, or minus the number of the
// signal that killed it.
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

// Running reports whether outriderd has not exited yet.
func (d *Daemon) Running() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// Output returns the end of outriderd's output.
func (d *Daemon) Output() string { return d.output.String() }

// Ready requests /healthz/ready. It reports whether the proxy is ready, and if not, why.
func (r *Rig) Ready() (bool, string) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true}}
	answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", r.Ports.Status))
	if err != nil {
		return false, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode == http.StatusOK, string(body)
}

// WaitReady waits until /healthz/ready responds with 200.
func (r *Rig) WaitReady(limit time.Duration) {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		ready, reason := r.Ready()
		if ready {
			return
		}
		d := r.Daemon()
		if d != nil && !d.Running() {
			r.t.Fatalf("outriderd ended with %d; its last lines:\n%s", d.exit, d.Output())
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("not ready within %v: %s\n%s", limit, reason, d.Output())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// tail is a writer that stores the end of what is written.
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
