package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// `systemctl stop outrider.slice` ends the agent, the keeper and Envoy, in whatever state the agent
// is.
func TestSlice_StopEndsEverything(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.WriteText("/etc/systemd/system/outrider.service.d/test.conf", "[Service]\nRestartSec=1h\n")
	h.MustRun(t, "systemctl", "daemon-reload")
	kill := func() {
		h.MustRun(t, "systemctl", "kill", "--kill-whom=main", "-s", "KILL",
			"outrider.service")
	}
	reached := func(want string) {
		t.Helper()
		h.Eventually(time.Minute, "the agent is "+want, func() bool {
			return strings.HasPrefix(h.Property("outrider", "ActiveState")+" "+
				h.Property("outrider", "SubState"), want)
		})
	}
	for _, c := range []struct {
		name   string
		damage func()
	}{
		{"running", func() {}},
		{"waiting to be restarted", func() {
			kill()
			reached("activating auto-restart")
		}},
		{"failed", func() {
			kill()
			reached("activating auto-restart")
			h.WriteText("/etc/outrider/conf.d/50-broken.toml", "nonsense = 1\n")
			if out, err := h.Run(t.Context(), "systemctl", "restart",
				"outrider.service"); err == nil {
				t.Errorf("a broken configuration starts: %s", out)
			}
			reached("failed")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.MustRun(t, "rm", "-f", "/etc/outrider/conf.d/50-broken.toml")
			h.MustRun(t, "systemctl", "start", "outrider.service")
			h.MustServe()
			c.damage()
			h.MustServe() // Envoy continues without its agent
			h.MustRun(t, "systemctl", "stop", "outrider.slice")
			for _, program := range []string{"outriderd", "outrider-keeper", "envoy"} {
				if left := h.ProcessIDs(program); len(left) > 0 {
					t.Errorf("%s still runs: %v", program, left)
				}
			}
			if state := h.Property("outrider", "ActiveState"); state != "inactive" &&
				state != "failed" {
				t.Errorf("the agent is %s", state)
			}
		})
	}
}

// A start or a reload may take longer than the time-outs of the unit: the agent extends them.
// STATUS= explains what it waits for.
func TestPhasesThatLast(t *testing.T) {
	t.Parallel()
	timeout, await, overlap := 5*time.Second, 8*time.Second, 7*time.Second
	if full() {
		timeout, await, overlap = 20*time.Second, 2*time.Minute, time.Minute
	}
	h := NewHost(t)
	h.WriteText("/etc/systemd/system/outrider.service.d/test.conf",
		fmt.Sprintf("[Service]\nTimeoutStartSec=%v\nTimeoutStopSec=4s\n", timeout))
	h.MustRun(t, "systemctl", "daemon-reload")
	h.WriteText("/etc/outrider/conf.d/50-slow.toml", fmt.Sprintf(`
[identity]
wait = "1h"
[reload]
files = ["/etc/outrider/awaited.pem"]
[envoy]
drain_duration = "3s"
parent_shutdown_duration = "%v"
termination_drain_duration = "8s"
`, overlap))
	began := time.Now()
	h.MustRun(t, "systemctl", "start", "--no-block", "outrider.service")
	status := func(what string) func() bool {
		return func() bool { return strings.Contains(h.Property("outrider", "StatusText"), what) }
	}
	h.Eventually(time.Minute, "STATUS says which file is waited for",
		status("/etc/outrider/awaited.pem"))
	h.Eventually(await+time.Minute, "the start has lasted longer than TimeoutStartSec",
		func() bool { return time.Since(began) > await })
	if state := h.Property("outrider", "ActiveState"); state != "activating" ||
		h.Property("outrider", "NRestarts") != "0" {
		t.Fatalf("the agent is %s, restarted %s times", state, h.Property("outrider", "NRestarts"))
	}
	h.WriteText("/etc/outrider/awaited.pem", "x")
	h.Eventually(time.Minute, "the agent has started",
		func() bool { return h.Property("outrider", "ActiveState") == "active" })
	h.MustServe()
	t.Logf("started after %v", time.Since(began))

	// This client stays connected: a reload waits only for older epochs that have clients.
	h.MustRun(t, "systemd-run", "--quiet", "--unit=client", "bash", "-c",
		"exec 3<>/dev/tcp/127.0.0.1/81; echo hello >&3; read -r -t 30 line <&3; echo \"got "+
			"$line\"; exec sleep 600")
	h.Eventually(time.Minute, "the client is connected",
		func() bool {
			return strings.Contains(h.Journal("-u", "client", "-o", "cat"),
				"got hello")
		})
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	began = time.Now()
	reloaded := make(chan error, 1)
	go func() {
		// The second reload must wait for the end of epoch 0.
		_, err := h.Run(t.Context(), "systemctl", "reload", "outrider.service")
		reloaded <- err
	}()
	h.Eventually(time.Minute, "STATUS says which epoch is waited for",
		status("waiting for epoch 0 to finish draining, 1 client connection left, until "))
	if err := <-reloaded; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < overlap/2 {
		t.Errorf("the second reload took %v: it did not wait", took)
	}
	if log := h.Journal("-u", "outrider", "-o", "cat"); !strings.Contains(log,
		"waiting for an older epoch to finish draining epoch=0 ") {
		t.Errorf("the journal does not say what was waited for:\n%s", log)
	}
	h.MustServe()
	if live := h.LiveEpoch(); live.Number != 2 {
		t.Errorf("after two reloads epoch %d is live", live.Number)
	}
	t.Logf("reloaded after %v", time.Since(began))

	began = time.Now()
	h.MustRun(t, "systemctl", "stop", "outrider.service")
	if took := time.Since(began); took < 7*time.Second ||
		h.Property("outrider", "Result") != "success" {
		t.Errorf("stopped after %v: %s", took, h.Property("outrider", "Result"))
	}
}
