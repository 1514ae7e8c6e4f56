package systemtest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/rig"
)

func TestMain(m *testing.M) {
	if count, err := strconv.Atoi(os.Getenv(holdEnvironment)); err == nil {
		fmt.Fprintln(os.Stderr, hold(count))
		os.Exit(1)
	}
	if os.Getenv(floodEnvironment) != "" {
		os.Exit(flood())
	}
	if os.Getenv(abandonEnvironment) != "" {
		os.Exit(abandon())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the system tests boot machines: run them as root")
		os.Exit(1)
	}
	code := m.Run()
	rig.RemovePrograms()
	os.Exit(code)
}

// TestLife tests the first start, a reload, restarts, crashes of the agent and the keeper, the
// watchdog and a stop, all under systemd.
func TestLife(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	if out, _ := h.Run(t.Context(), "systemctl", "is-enabled",
		"outrider.service"); out != "disabled" {
		t.Errorf("after the installation outrider.service is %s", out)
	}
	h.MustRun(t, "systemctl", "enable", "--now", "outrider.service")
	h.MustServe()
	h.Eventually(time.Minute, "active, and epoch 0 serves", func() bool {
		return h.Property("outrider", "ActiveState") == "active" &&
			strings.HasPrefix(h.Property("outrider", "StatusText"), "epoch 0 serves")
	})
	if failed := h.MustRun(t, "systemctl", "list-units", "--failed", "--no-legend"); failed != "" {
		t.Errorf("failed units: %s", failed)
	}
	t.Run("privileges", func(t *testing.T) { privileges(t, h) })
	t.Run("reload", func(t *testing.T) { reload(t, h) })
	t.Run("restart keeps Envoy", func(t *testing.T) {
		for _, command := range []string{"restart", "try-restart"} {
			before, agent := h.LiveEpoch(), h.MainPID("outrider")
			h.MustRun(t, "systemctl", command, "outrider.service")
			h.MustServe()
			if after := h.LiveEpoch(); after.PID != before.PID || after.Number != before.Number {
				t.Errorf("%s: epoch %d, pid %d became epoch %d, pid %d", command, before.Number,
					before.PID, after.Number, after.PID)
			}
			if h.MainPID("outrider") == agent {
				t.Errorf("%s: the agent is the same", command)
			}
		}
	})
	t.Run("a killed agent's Envoy is adopted", func(t *testing.T) {
		before := h.LiveEpoch()
		adopted(t, h, "KILL", before.PID)
	})
	t.Run("a hung agent is ended by the watchdog", func(t *testing.T) {
		// The timeout must tolerate that the agent is not scheduled for a second or two.
		h.WriteText("/etc/systemd/system/outrider.service.d/test.conf",
			"[Service]\nWatchdogSec=8s\n")
		h.MustRun(t, "systemctl", "daemon-reload")
		h.MustRun(t, "systemctl", "restart", "outrider.service")
		before := h.LiveEpoch()
		// A reload extends the timeout of the unit. After the reload, the extension must not delay
		// the watchdog.
		h.MustRun(t, "outrider", "reload", "--if-changed")
		adopted(t, h, "STOP", before.PID)
		if log := h.Journal("-u", "outrider.service"); !strings.Contains(log, "Watchdog timeout") {
			t.Error("the watchdog did not end the agent")
		}
	})
	t.Run("the keeper is replaced in place", func(t *testing.T) {
		keeper, before := h.MainPID("outrider-envoy"), h.LiveEpoch()
		h.replaceKeeper()
		h.MustRun(t, "systemctl", "reload", "outrider.service")
		if h.MainPID("outrider-envoy") != keeper || h.LiveEpoch().PID == before.PID {
			t.Errorf("keeper %d became %d; Envoy %d became %d", keeper, h.MainPID("outrider-envoy"),
				before.PID, h.LiveEpoch().PID)
		}
	})
	t.Run("a killed keeper comes back", func(t *testing.T) {
		keeper := h.MainPID("outrider-envoy")
		h.MustRun(t, "systemctl", "kill", "--kill-whom=main", "-s", "KILL",
			"outrider-envoy.service")
		h.Eventually(time.Minute, "another keeper's Envoy serves", func() bool {
			now := h.MainPID("outrider-envoy")
			return now != 0 && now != keeper && h.EnvoyHTTPStatus() == "200"
		})
	})
	t.Run("a keeper that stays away is an error", func(t *testing.T) { keeperStaysAway(t, h) })
	t.Run("stop", func(t *testing.T) { stop(t, h) })
}

// keeperStaysAway kills the keeper, which also ends Envoy, and delays the keeper's restart until
// the agent has reported that the keeper is lost. Then Envoy must serve again and the agent must
// stop reporting this.
func keeperStaysAway(t *testing.T, h *Host) {
	const dropIn = "/etc/systemd/system/outrider-envoy.service.d/test.conf"
	h.WriteText(dropIn,
		"[Service]\nExecStartPre=/bin/sh -c 'until [ -e /run/go ]; do sleep 0.05; done'\n")
	h.MustRun(t, "systemctl", "daemon-reload")
	h.MustRun(t, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", "outrider-envoy.service")
	h.Eventually(time.Minute, "the agent says that Envoy is gone", func() bool {
		status := h.Status()
		return !status.Ready && !status.Envoy.Live && slices.ContainsFunc(status.Conditions,
			func(c condition.Condition) bool {
				return c.Code == "keeper-lost" && c.Severity == condition.Error
			})
	})
	h.WriteText("/run/go", "")
	h.Eventually(time.Minute, "Envoy serves again", func() bool {
		return h.EnvoyHTTPStatus() == "200" &&
			h.Status().Ready
	})
	for _, standing := range h.Status().Conditions {
		t.Errorf("it stands: %+v", standing)
	}
	h.MustRun(t, "rm", dropIn)
	h.MustRun(t, "systemctl", "daemon-reload")
}

// privileges checks the users, capabilities and other privileges of the agent, the keeper and
// Envoy, and the modes of their directories and sockets.
func privileges(t *testing.T, h *Host) {
	agent, keeper, live := h.MainPID("outrider"), h.MainPID("outrider-envoy"), h.LiveEpoch().PID
	user := func(name string) string { return h.MustRun(t, "id", "-u", name) }
	for _, c := range []struct {
		what string
		pid  int
		user string
		// effective, permitted, bounding, ambient and inheritable; bit 10 is CAP_NET_BIND_SERVICE
		capabilities string
	}{
		{"agent", agent, "outrider", "0000000000000000"},
		{"keeper", keeper, "outrider-envoy", "0000000000000400"},
		{"Envoy", live, "outrider-envoy", "0000000000000400"},
	} {
		id := user(c.user)
		if got := strings.Fields(h.ProcessStatusField(c.pid, "Uid")); strings.Join(got,
			" ") != strings.Join([]string{id, id, id, id}, " ") {
			t.Errorf("%s runs as %v, not as %s (%s)", c.what, got, c.user, id)
		}
		for _, set := range []string{"CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh"} {
			if got := h.ProcessStatusField(c.pid, set); got != c.capabilities {
				t.Errorf("%s: %s is %s, want %s", c.what, set, got, c.capabilities)
			}
		}
		if got := h.ProcessStatusField(c.pid, "NoNewPrivs"); got != "1" {
			t.Errorf("%s: NoNewPrivs is %s", c.what, got)
		}
		if got := h.ProcessStatusField(c.pid, "Seccomp"); got != "2" {
			t.Errorf("%s: Seccomp is %s", c.what, got)
		}
	}
	for path, want := range map[string]string{
		"/run/outrider":                "1775 root root",
		"/run/outrider/outrider.sock":  "666 outrider outrider",
		"/run/outrider/keeper.sock":    "600 outrider outrider",
		"/run/outrider/envoy":          "2751 outrider outrider-envoy",
		"/run/outrider/envoy/xds.sock": "660 outrider outrider-xds",
		"/run/outrider-envoy":          "1770 root outrider-envoy",
		"/var/lib/outrider":            "710 root outrider",
		"/var/lib/outrider/outrider":   "700 outrider outrider",
		"/var/log/outrider":            "750 outrider-envoy outrider-envoy",
	} {
		if got := h.MustRun(t, "stat", "-c", "%a %U %G", path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	// Envoy's user can neither read the agent's secrets nor control the agent.
	for what, script := range map[string]string{
		"read the agent's state":         "ls /var/lib/outrider",
		"write its own configuration":    "touch /run/outrider/envoy/x",
		"read the agent's configuration": "cat /etc/outrider/outrider.toml",
		"reload":                         "outrider reload",
		"reach the keeper": "curl -s --unix-socket /run/outrider/keeper.sock " +
			"http://x/",
		"read the agent's memory": fmt.Sprintf("head -c1 /proc/%d/environ", agent),
	} {
		if out, err := h.Run(t.Context(), "setpriv", "--reuid=outrider-envoy",
			"--regid=outrider-envoy", "--init-groups", "sh", "-c", script); err == nil {
			t.Errorf("Envoy's user may %s: %s", what, out)
		}
	}
	// An Envoy that was started before group outrider-xds existed is not a member, but can connect.
	h.MustRun(t, "setpriv", "--reuid=outrider-envoy", "--regid=outrider-envoy", "--clear-groups",
		"curl", "-s", "--http2-prior-knowledge", "--unix-socket", "/run/outrider/envoy/xds.sock", "http://x/")
	if out, err := h.Run(t.Context(), "setpriv", "--reuid=outrider-envoy", "--regid=outrider-envoy",
		"--init-groups", "outrider", "status"); err != nil {
		t.Errorf("Envoy's user may not look: %s", out)
	}
}

// reload checks that systemctl reload waits for the result and returns it, and that a refused
// reload changes nothing.
func reload(t *testing.T, h *Host) {
	before := h.LiveEpoch()
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	after := h.LiveEpoch()
	if after.Number != before.Number+1 {
		t.Errorf("after systemctl reload epoch %d is live, before it was %d", after.Number,
			before.Number)
	}
	h.WriteText("/etc/outrider/conf.d/50-broken.toml", "[envoy]\nconcurrency = \"many\"\n")
	out, err := h.Run(t.Context(), "systemctl", "reload", "outrider.service")
	if err == nil {
		t.Errorf("the reload of a broken configuration succeeded: %s", out)
	}
	// The log line and the status (STATUS=) are datagrams, which journald and systemd may read
	// after systemctl has returned.
	h.Eventually(time.Minute, "the journal tells file and line", func() bool {
		return strings.Contains(h.Journal("-u", "outrider.service", "-p", "err"),
			"50-broken.toml:2")
	})
	h.Eventually(time.Minute, "STATUS tells file and line", func() bool {
		return strings.Contains(h.Property("outrider", "StatusText"), "50-broken.toml:2")
	})
	h.Eventually(time.Minute, "the agent has come to rest",
		func() bool { return h.Property("outrider", "ActiveState") == "active" })
	if h.LiveEpoch().PID != after.PID {
		t.Error("a refused reload changed something")
	}
	h.MustServe()
	h.MustRun(t, "rm", "/etc/outrider/conf.d/50-broken.toml")
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	if live := h.LiveEpoch(); live.PID == after.PID {
		t.Error("the reload after a refused one did nothing")
	}
	h.MustServe()
}

// adopted sends a signal to the agent, which ends it at once or through the watchdog, and checks
// that the next agent adopts Envoy, whose PID is pid.
func adopted(t *testing.T, h *Host, signal string, pid int) {
	t.Helper()
	agent := h.MainPID("outrider")
	h.MustRun(t, "systemctl", "kill", "--kill-whom=main", "-s", signal, "outrider.service")
	h.Eventually(time.Minute, "another agent runs", func() bool {
		now := h.MainPID("outrider")
		return now != 0 && now != agent && h.Property("outrider", "ActiveState") == "active"
	})
	h.MustServe()
	if live := h.LiveEpoch(); live.PID != pid {
		t.Errorf("Envoy %d became %d", pid, live.PID)
	}
}

// replaceKeeper makes the keeper re-execute itself, and waits until it has done so and the agent is
// connected again.
func (h *Host) replaceKeeper() {
	h.t.Helper()
	image := func() string { // auxv has random addresses, so it changes with each exec
		return h.MustRun(h.t, "od", "-An", "-tx8", fmt.Sprintf("/proc/%d/auxv",
			h.MainPID("outrider-envoy")))
	}
	before := image()
	// This only requests the re-execution.
	h.MustRun(h.t, "systemctl", "reload", "outrider-envoy.service")
	h.Eventually(time.Minute, "the keeper is another image",
		func() bool { return image() != before })
	h.Eventually(time.Minute, "the agent has found it again",
		func() bool { return h.Status().Ready })
}

// stop checks that stopping the agent also stops outrider-envoy.service, and leaves no processes,
// and no files except for the sockets that systemd keeps open.
func stop(t *testing.T, h *Host) {
	h.MustRun(t, "systemctl", "stop", "outrider.service")
	for unit, want := range map[string]string{"outrider.service": "inactive",
		"outrider-envoy.service": "inactive", "outrider-envoy.socket": "active"} {
		// systemd may notice the exit of the keeper, which the agent requests, after that of the
		// agent.
		h.Eventually(time.Minute, unit+" is "+want,
			func() bool { return h.Property(unit, "ActiveState") == want })
		if result := h.Property(unit, "Result"); result != "success" {
			t.Errorf("%s: %s", unit, result)
		}
	}
	for _, program := range []string{"outriderd", "outrider-keeper", "envoy"} {
		if left := h.ProcessIDs(program); len(left) > 0 {
			t.Errorf("%s still runs: %v", program, left)
		}
	}
	left := strings.Fields(h.RunScript(
		"find /run/outrider /run/outrider-envoy /dev/shm ! -type d | sort"))
	for i, socket := range left {
		left[i] = strings.TrimPrefix(socket, "/run/outrider/")
	}
	if want := []string{"capture.sock", "keeper.sock", "probe.sock", "resolved.sock"}; !slices.Equal(
		left, want) {
		t.Errorf("left behind: %q", left)
	}
}
