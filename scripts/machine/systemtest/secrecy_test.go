package systemtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
)

// The agent, the keeper and Envoy leave no core file when they crash. Other processes of the
// agent's or the keeper's user cannot read their memory, but the keeper can still find its Envoys'
// sockets.
func TestSecrecy_NoCoreAndNoTracing(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	agent, keeper := h.MainPID("outrider.service"), h.MainPID("outrider-envoy.service")
	envoy := h.LiveEpoch().PID
	for name, pid := range map[string]int{"agent": agent, "keeper": keeper, "Envoy": envoy} {
		limits := h.MustRun(t, "cat", fmt.Sprintf("/proc/%d/limits", pid))
		core := "" // soft and hard limit
		for line := range strings.Lines(limits) {
			if values, ok := strings.CutPrefix(line, "Max core file size"); ok {
				core = strings.Join(strings.Fields(values), " ")
			}
		}
		filter := h.MustRun(t, "cat", fmt.Sprintf("/proc/%d/coredump_filter", pid))
		if core != "0 0 bytes" || strings.Trim(filter, "0") != "" {
			t.Errorf("%s: core limit %q, core filter %q", name, core, filter)
		}
	}
	for _, c := range []struct {
		name, user string
		pid        int
	}{
		{"the agent", "outrider", agent},
		{"the keeper", "outrider-envoy", keeper},
		{"Envoy", "outrider", envoy},
		{"Envoy", "outrider-envoy", envoy}, // Envoy's user, but without Envoy's capability
	} {
		if _, err := h.Run(t.Context(), "runuser", "-u", c.user, "--", "sh", "-c",
			fmt.Sprintf("exec 3</proc/%d/mem", c.pid)); err == nil {
			t.Errorf("%s reads the memory of %s", c.user, c.name)
		}
	}
	// During a reload the keeper must access the listeners of the old epoch's Envoy.
	h.WriteText("/etc/outrider/conf.d/50-more.toml", "[envoy]\nconcurrency = 1\n")
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	h.MustServe()
	h.MustRun(t, "systemctl", "reload", "outrider-envoy.service") // re-executes the keeper
	h.MustServe()
	// Between its exec and its call of prctl other processes can read /proc/PID of the keeper.
	h.Eventually(time.Minute, "after its upgrade the keeper is not readable", func() bool {
		_, err := h.Run(t.Context(), "runuser", "-u", "outrider-envoy", "--", "ls",
			fmt.Sprintf("/proc/%d/fd/", keeper))
		return err != nil
	})
	if problems := h.Journal("-u", "outrider*", "-p", "warning", "-o", "cat"); strings.Contains(
		problems, "sockets of process") {
		t.Errorf("the journal:\n%s", problems)
	}
}

// A secret is an object on the bus, and its renewal is a signal. The private key exists only in the
// files that output_dir requires: nowhere else on the disk, and not in the journal, on the bus, in
// a bug report, in a core file, or in what another user can read in /proc.
func TestSecrecy_KeysAreNowhere(t *testing.T) {
	t.Parallel()
	c := newCertified(t)
	c.startIstiod()
	const output = "/var/lib/outrider/outrider/output"
	c.RunScript("install -d -m 0700 -o outrider -g outrider " + output)
	identity := "[identity]\noutput_dir = \"" + output + "\"\n"
	c.WriteText("/etc/outrider/conf.d/70-output.toml", identity)
	c.MustRun(t, "systemctl", "start", "outrider.service")
	c.OnBus(busName)
	const object = busObject + "/secret/default"
	property := func(name string) string {
		out, err := c.Run(t.Context(), "busctl", "get-property", busName, object,
			busName+".Secret", name)
		if err != nil {
			return err.Error()
		}
		return out
	}
	c.Eventually(time.Minute, "the secret is on the bus", func() bool {
		return property("SpiffeID") == `s "spiffe://cluster.local/ns/default/sa/web"`
	})
	if got := property("Source"); got != `s "istiod"` {
		t.Errorf("source: %s", got)
	}
	serial := property("Serial")

	c.MustRun(t, "systemd-run", "--quiet", "--unit=monitor", "--property=StandardOutput="+
		"file:/run/monitor.log", "dbus-monitor", "--system")
	c.Eventually(time.Minute, "the monitor listens", func() bool {
		_, err := c.Run(t.Context(), "test", "-s", "/run/monitor.log")
		return err == nil
	})
	c.WriteText("/etc/outrider/conf.d/70-output.toml", identity+"ttl = \"1h\"\n")
	c.Eventually(time.Minute, "the renewal is on the bus", func() bool {
		_, err := c.Run(t.Context(), "grep", "-q", "member=SecretRotated", "/run/monitor.log")
		return err == nil && property("Serial") != serial
	})
	if live := c.LiveEpoch(); live.Number != 0 {
		t.Errorf("a renewal started epoch %d", live.Number)
	}

	// Crashes must leave no core files, which would contain the key.
	crashed := c.LiveEpoch().PID
	c.MustRun(t, "kill", "-s", "SEGV", fmt.Sprint(crashed))
	c.Eventually(time.Minute, "another Envoy is live", func() bool {
		return slices.ContainsFunc(c.Status().Epochs, func(e api.Epoch) bool {
			return e.State == api.EpochLive && e.PID != crashed
		})
	})
	c.MustRun(t, "kill", "-s", "ABRT", fmt.Sprint(c.MainPID("outrider.service")))
	c.OnBus(busName)
	c.MustServe()

	key := c.RunScript("sed -n 2p " + output + "/key.pem")
	if len(key) != 64 {
		t.Fatalf("no line of a key: %q", key)
	}
	c.RunScript("journalctl --sync; journalctl -a >/run/journal.log; busctl tree " + busName +
		" >/run/bus.log; busctl call " + busName + " / org.freedesktop.DBus.ObjectManager" +
		" GetManagedObjects >>/run/bus.log; outrider bug-report -o /run/report.tar.gz;" +
		" mkdir /run/report; tar -C /run/report -xzf /run/report.tar.gz")
	c.WriteText("/run/key", key)
	found := c.RunScript("grep -rlF -D skip -f /run/key /etc /var /run /tmp /dev/shm 2>/dev/null " +
		"| grep -v -e ^/run/key$ || true")
	if seen := c.RunScript("chmod 644 /run/key; runuser -u nobody -- sh -c 'grep -alF -D skip " +
		"-f /run/key /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mem /proc/[0-9]*/fd/* " +
		"2>/dev/null' || true"); seen != "" {
		t.Errorf("another user finds the private key in %s", seen)
	}
	for path := range strings.Lines(found) {
		if !strings.HasPrefix(path, output+"/") {
			t.Errorf("the private key is in %s", path)
		}
	}
	if !strings.Contains(found, output) {
		t.Error("the search does not find the file that has the key")
	}
}
