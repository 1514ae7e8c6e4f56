package systemtest

import (
	"strings"
	"testing"
	"time"
)

// `systemctl stop outrider.slice` ends everything, whatever state the agent is in.
func TestSliceEndsEverything(t *testing.T) {
	h := NewHost(t)
	h.Write("/etc/systemd/system/outrider.service.d/test.conf", "[Service]\nRestartSec=1h\n")
	h.MustRun(t, "systemctl", "daemon-reload")
	kill := func() { h.MustRun(t, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", "outrider.service") }
	reached := func(want string) {
		t.Helper()
		h.Eventually(10*time.Second, "the agent is "+want, func() bool {
			return strings.HasPrefix(h.Property("outrider", "ActiveState")+" "+h.Property("outrider", "SubState"), want)
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
			h.Write("/etc/outrider/conf.d/50-broken.toml", "nonsense = 1\n")
			if out, err := h.Run(t.Context(), "systemctl", "restart", "outrider.service"); err == nil {
				t.Errorf("a broken configuration starts: %s", out)
			}
			reached("failed")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.MustRun(t, "rm", "-f", "/etc/outrider/conf.d/50-broken.toml")
			h.MustRun(t, "systemctl", "start", "outrider.service")
			h.Serves()
			c.damage()
			h.Serves() // Envoy goes on without its agent
			h.MustRun(t, "systemctl", "stop", "outrider.slice")
			for _, program := range []string{"outriderd", "outrider-keeper", "envoy"} {
				if left := h.Processes(program); len(left) > 0 {
					t.Errorf("%s still runs: %v", program, left)
				}
			}
			if state := h.Property("outrider", "ActiveState"); state != "inactive" && state != "failed" {
				t.Errorf("the agent is %s", state)
			}
		})
	}
}

// What a restart would not cure is not restarted, and says why.
func TestErrorsThatStay(t *testing.T) {
	h := NewHost(t)
	for _, c := range []struct{ name, script, undo, exit, sentence string }{
		{"invalid configuration", "echo 'nonsense = 1' >/etc/outrider/conf.d/x.toml", "rm /etc/outrider/conf.d/x.toml", "78", "/etc/outrider/conf.d/x.toml:1"},
		{"no Envoy", "rm /usr/local/bin/envoy", "ln -s /opt/envoy/envoy /usr/local/bin/envoy", "69", "/usr/local/bin/envoy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.Script(c.script)
			if out, err := h.Run(t.Context(), "systemctl", "start", "outrider.service"); err == nil {
				t.Errorf("it starts: %s", out)
			}
			if exit, restarts := h.Property("outrider", "ExecMainStatus"), h.Property("outrider", "NRestarts"); exit != c.exit || restarts != "0" || h.Property("outrider", "ActiveState") != "failed" {
				t.Errorf("exit %s, restarted %s times, %s", exit, restarts, h.Property("outrider", "ActiveState"))
			}
			if log := h.Journal("-u", "outrider.service"); !strings.Contains(log, c.sentence) {
				t.Errorf("the journal does not name %s:\n%s", c.sentence, log)
			}
			h.Script(c.undo)
		})
	}
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.Serves()
}

// Phases that last are not cut by the unit's time-outs, and STATUS says what is waited for.
func TestPhasesThatLast(t *testing.T) {
	h := NewHost(t)
	h.Write("/etc/systemd/system/outrider.service.d/test.conf", "[Service]\nTimeoutStartSec=2s\nTimeoutStopSec=2s\n")
	h.MustRun(t, "systemctl", "daemon-reload")
	h.Write("/etc/outrider/conf.d/50-slow.toml", `
[identity]
wait = "60s"
[reload]
files = ["/etc/outrider/awaited.pem"]
[envoy]
drain_duration = "3s"
parent_shutdown_duration = "6s"
termination_drain_duration = "5s"
`)
	h.MustRun(t, "systemctl", "start", "--no-block", "outrider.service")
	h.Eventually(10*time.Second, "STATUS says what is waited for", func() bool {
		return strings.Contains(h.Property("outrider", "StatusText"), "/etc/outrider/awaited.pem")
	})
	began := time.Now()
	h.Eventually(time.Minute, "the start has lasted longer than TimeoutStartSec", func() bool { return time.Since(began) > 5*time.Second })
	if state := h.Property("outrider", "ActiveState"); state != "activating" {
		t.Fatalf("the agent is %s", state)
	}
	h.Write("/etc/outrider/awaited.pem", "x")
	h.Eventually(20*time.Second, "the agent has started", func() bool { return h.Property("outrider", "ActiveState") == "active" })
	h.Serves()

	h.MustRun(t, "systemctl", "reload", "outrider.service")
	began = time.Now()
	h.MustRun(t, "systemctl", "reload", "outrider.service") // waits for the end of the epoch before
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("the second reload took %v: it did not wait", took)
	}
	h.Serves()

	began = time.Now()
	h.MustRun(t, "systemctl", "stop", "outrider.service")
	if took := time.Since(began); took < 4*time.Second || h.Property("outrider", "Result") != "success" {
		t.Errorf("stopped after %v: %s", took, h.Property("outrider", "Result"))
	}
}
