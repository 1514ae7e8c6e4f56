package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"outrider.org/outrider/agent/api"
)

// Epochs returns the output of `outrider epochs --json`.
func (r *Rig) Epochs() ([]api.Epoch, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, r.Programs.Path("outrider"), "--socket",
		filepath.Join(r.Dir, "run", "outrider.sock"), "epochs", "--json")
	out, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("outrider epochs: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return nil, err
	}
	var epochs []api.Epoch
	err = json.Unmarshal(out, &epochs)
	return epochs, err
}

// AwaitEpochState waits until an epoch is in a state, and returns the newest epoch in this state.
// It fails the test if that takes longer than limit.
func (r *Rig) AwaitEpochState(state api.EpochState, limit time.Duration) api.Epoch {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		epochs, err := r.Epochs()
		var found *api.Epoch
		for i, epoch := range epochs {
			if epoch.State == state && epoch.PID != 0 &&
				(found == nil || epoch.Started.After(found.Started)) {
				found = &epochs[i]
			}
		}
		if found != nil {
			return *found
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("no epoch is %s within %v: %+v (%v)", state, limit, epochs, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// LiveEpoch waits for a live epoch and returns it.
func (r *Rig) LiveEpoch() api.Epoch {
	r.t.Helper()
	return r.AwaitEpochState(api.EpochLive, time.Minute)
}

// Signal sends a signal to a process.
func (r *Rig) Signal(pid int, signal syscall.Signal) {
	r.t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		r.t.Errorf("%v to %d: %v", signal, pid, err)
	}
}

// ProcessExists reports whether a process exists and is not a zombie.
func ProcessExists(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, found := strings.Cut(string(text), ") ")
	return found && rest[0] != 'Z' && rest[0] != 'X'
}

// baseIDOfProcess returns the --base-id in an Envoy's command line, "" if there is none.
func baseIDOfProcess(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	arguments := strings.Split(string(text), "\x00")
	for i, argument := range arguments {
		if argument == "--base-id" && i+1 < len(arguments) {
			return arguments[i+1]
		}
	}
	return ""
}

// SharedMemoryPath returns the path of an Envoy's shared memory, which all epochs connected by hot
// restarts use.
func SharedMemoryPath(pid int) string {
	return "/dev/shm/envoy_shared_memory_" + baseIDOfProcess(pid) + "0"
}

// CheckAdmin returns an error unless the agent's admin port reports that the live epoch is LIVE.
func (r *Rig) CheckAdmin() error {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true}}
	answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/server_info", r.Ports.Admin))
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	var info struct{ State string }
	if err := json.NewDecoder(answer.Body).Decode(&info); err != nil {
		return fmt.Errorf("decode /server_info (HTTP status %s): %w", answer.Status, err)
	}
	if info.State != "LIVE" {
		return fmt.Errorf("/server_info reports state %s instead of LIVE", info.State)
	}
	return nil
}

// KillAgent sends SIGKILL to outriderd and waits until it has exited.
func (r *Rig) KillAgent() {
	r.t.Helper()
	d := r.Daemon()
	if err := d.Process.Kill(); err != nil {
		r.t.Errorf("kill outriderd: %v", err)
	}
	d.Wait(r.t, 30*time.Second)
}

// KeepAgentRunning restarts outriderd after each exit, like an init system, until stop is called.
// Exits by other causes than SIGKILL fail the test. stop does not end the running outriderd.
func (r *Rig) KeepAgentRunning() (stop func()) {
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			d := r.Daemon()
			select {
			case <-d.done:
			case <-stopping:
				return
			}
			if d.exit != -int(syscall.SIGKILL) {
				r.t.Errorf("outriderd ended with %d; its last lines:\n%s", d.exit, d.Output())
				return
			}
			if _, err := r.start(); err != nil {
				r.t.Errorf("start outriderd again: %v", err)
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(stopping); <-stopped })
}
