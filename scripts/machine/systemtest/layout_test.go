package systemtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// At every boot each socket is active before its agent starts, there is no ordering cycle, no unit
// of Outrider fails, and the agents become ready.
func TestBoot_NoOrderingCycle(t *testing.T) {
	t.Parallel()
	rounds := 3
	if full() {
		rounds = 20
	}
	h := NewHost(t)
	h.Instance("a", 0)
	h.MustRun(t, "systemctl", "enable", "outrider.service", "outrider@a.service",
		"outrider-online.target")
	// Only messages about Outrider and about cycles count: other units of the machine may be
	// invalid.
	if said := h.RunScript(
		"systemd-analyze verify --man=no multi-user.target 2>&1 | grep -e outrider -e cycle || " +
			"true"); said != "" {
		t.Errorf("systemd-analyze verify multi-user.target:\n%s", said)
	}
	for range rounds {
		if err := h.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.startBackend()
		h.Eventually(time.Minute, "both agents are ready", func() bool {
			return h.Property("outrider", "ActiveState") == "active" &&
				h.Property("outrider@a", "ActiveState") == "active"
		})
		h.MustServe()
		if said := h.RunScript(
			"journalctl -q -b --no-pager | grep -i 'ordering cycle' || true"); said != "" {
			t.Error(said)
		}
		if failed := h.MustRun(t, "systemctl", "list-units", "--failed", "--plain", "--no-legend",
			"outrider*", "run-outrider*"); failed != "" {
			t.Error(failed)
		}
		for agent, socket := range map[string]string{"outrider": "outrider-envoy.socket",
			"outrider@a": "outrider-envoy@a.socket"} {
			if listening, started := h.microseconds(socket, "ActiveEnterTimestampMonotonic"),
				h.microseconds(agent, "ExecMainStartTimestampMonotonic"); listening > started {
				t.Errorf("%s started %d µs before its socket", agent, listening-started)
			}
			if restarts := h.Property(agent, "NRestarts"); restarts != "0" {
				t.Errorf("%s was restarted %s times", agent, restarts)
			}
		}
	}
}

func (h *Host) microseconds(unit, property string) int64 {
	h.t.Helper()
	number, err := strconv.ParseInt(h.Property(unit, property), 10, 64)
	if err != nil || number == 0 {
		h.t.Fatalf("%s of %s: %d, %v", property, unit, number, err)
	}
	return number
}

// Envoy's user can fill /run/outrider-envoy, which is a small file system of its own, but not the
// rest of /run. While it is full, Envoy serves and the agents can be restarted.
func TestEnvoysDirectory_IsBounded(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.Instance("a", 0)
	h.MustRun(t, "systemctl", "start", "outrider.service", "outrider@a.service")
	if got := h.MustRun(t, "findmnt", "-n", "-o", "FSTYPE,OPTIONS",
		"/run/outrider-envoy"); !strings.Contains(got, "size=4096k") {
		t.Errorf("/run/outrider-envoy: %s", got)
	}
	before := h.RunScript("df --output=avail,iavail /run | tail -n 1")
	out := h.RunScript(`runuser -u outrider-envoy -- sh -c '
head -c 100M /dev/zero >/run/outrider-envoy/fill; echo "$? data"
i=0; while : >/run/outrider-envoy/a/f$i; do i=$((i+1)); [ $i -lt 20000 ] || break; done; echo "$i names"' 2>&1 || true`)
	t.Log(out)
	if !strings.Contains(out, "1 data") || strings.Contains(out, "20000 names") {
		t.Errorf("Envoy's user is not stopped: %s", out)
	}
	t.Logf("free in /run before %s, now %s", before,
		h.RunScript("df --output=avail,iavail /run | tail -n 1"))
	h.MustServe()
	for _, unit := range []string{"outrider.service", "outrider@a.service"} {
		h.MustRun(t, "systemctl", "restart", unit) // adopts the Envoy that runs
	}
	h.MustServe()
	h.RunScript("rm -f /run/outrider-envoy/fill; find /run/outrider-envoy/a -name 'f*' -delete")
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	h.MustServe()
}

// If /run or /run/outrider-envoy has no free space or no free inode, the start fails and the
// journal says why. The agent becomes ready when there is space again.
func TestStart_RecoversFromFullRun(t *testing.T) {
	t.Parallel()
	const pages = `head -c 1G /dev/zero >%[1]s/fill 2>/dev/null || true; truncate -s -$((%[2]d * 4096)) %[1]s/fill`
	const names = `mkdir %[1]s/fill; cd %[1]s/fill; seq 20000 | xargs touch 2>/dev/null || true`
	const noSpace = "no space left on device"
	for _, c := range []struct{ name, folder, fill, told string }{
		{"no page", "/run", fmt.Sprintf(pages, "/run", 0), noSpace},
		{"less than the bootstrap needs", "/run", fmt.Sprintf(pages, "/run", 2), noSpace},
		// Without a free inode in /run, systemd itself cannot start the unit.
		{"no name", "/run", fmt.Sprintf(names, "/run"), "Failed to set up mount namespacing"},
		{"no page for Envoy", "/run/outrider-envoy", fmt.Sprintf(pages, "/run/outrider-envoy", 0),
			noSpace},
		{"no name for Envoy", "/run/outrider-envoy", fmt.Sprintf(names, "/run/outrider-envoy"),
			noSpace},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := NewHost(t)
			// /run is made so small that the test can fill it.
			h.RunScript("systemctl start outrider-envoy.socket; mount -o remount,size=$(($(df " +
				"--output=used /run | tail -n 1) + 2000))k," +
				"nr_inodes=$(($(df --output=iused /run | tail -n 1) + 2000)) /run")
			h.RunScript(c.fill)
			h.MustRun(t, "systemctl", "start", "--no-block", "outrider.service")
			h.Eventually(time.Minute, "the journal says "+c.told, func() bool {
				return strings.Contains(h.Journal("-o", "cat", "-u", "outrider*"), c.told)
			})
			// The message may be that of a unit that starts before the agent, so wait for the
			// agent, too.
			h.Eventually(time.Minute, "the agent starts again", func() bool {
				state := h.Property("outrider", "ActiveState")
				return state == "activating" || state == "deactivating"
			})
			h.RunScript("rm -r " + c.folder + "/fill")
			h.Eventually(time.Minute, "the agent is ready",
				func() bool { return h.Property("outrider", "ActiveState") == "active" })
			h.MustServe()
		})
	}
}

// A compromised agent that places a symbolic link in /run/outrider cannot make systemd create the
// socket of an instance elsewhere, or change its owner.
func TestInstancesSocket_FollowsNoLink(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.Instance("a", 0)
	h.RunScript("systemd-tmpfiles --create outrider.conf; " +
		"runuser -u outrider -- sh -c 'mkdir /var/lib/outrider/outrider/trap; ln -s " +
		"/var/lib/outrider/outrider/trap /run/outrider/a'")
	h.MustRun(t, "systemctl", "start", "outrider-envoy@a.socket")
	if got := h.RunScript(
		"ls /var/lib/outrider/outrider/trap; stat -c '%F %U' /run/outrider/a " +
			"/run/outrider/a/keeper.sock"); got != "directory root\nsocket outrider" {
		t.Errorf("the socket is elsewhere:\n%s", got)
	}
	h.MustRun(t, "systemctl", "start", "outrider@a.service")
}
