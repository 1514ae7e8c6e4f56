package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// Limits of the context switches per second of all idle programs together: idleSwitches on a quiet
// machine, idleSwitchesBusy on a busy one, where each wake-up causes several switches.
const (
	idleSwitches     = 20
	idleSwitchesBusy = 80
)

// idleProgram limits how many bytes of an idle agent's program file are in memory. Directly after
// the start it is twice as much.
const idleProgram = 16 << 20

// With capture and DNS configured, the agent, the keeper, outrider-capture and outrider-resolved
// rarely wake up while nothing happens: polling ten times a second would cause several hundred
// context switches. The agent keeps little of its program file in memory.
func TestIdle_FewContextSwitches(t *testing.T) {
	h := NewHost(t, packages(t, "systemd-resolved")+":/opt/resolved")
	h.RunScript(installResolved)
	startUpstreamDNS(t, h)
	h.WriteText("/etc/outrider/conf.d/idle.toml", interception+"dns = true\n"+fmt.Sprintf(routed,
		15053))
	h.RunScript("systemctl start outrider")
	h.captureIs("on")
	h.Eventually(time.Minute, "queries are redirected", func() bool {
		return strings.Contains(h.RunScript("nft list tables"), "outrider-dns")
	})
	resolved := strings.Fields(h.RunScript("systemctl list-units --plain --no-legend " +
		"'outrider-resolved@*'"))
	if len(resolved) == 0 {
		t.Fatal("no outrider-resolved runs")
	}
	units := []string{"outrider.service", "outrider-envoy.service", "outrider-capture.service",
		resolved[0]}
	pids := map[string]int{}
	for _, unit := range units {
		pids[unit] = hostPID(t, h.Machine, h.MainPID(unit))
	}
	limit, over := idleSwitchesBusy, 3*time.Second
	if full() {
		limit, over = idleSwitches, 20*time.Second
	}
	h.Eventually(10*over, fmt.Sprintf("at most %d context switches per second", limit), func() bool {
		before, sum := map[string]int{}, 0
		begun := time.Now()
		for unit, pid := range pids {
			before[unit] = parts.ContextSwitches(t, pid)
		}
		time.Sleep(over) //house:sleep what happens in this time is measured
		took := time.Since(begun).Seconds()
		for _, unit := range units {
			n := parts.ContextSwitches(t, pids[unit]) - before[unit]
			t.Logf("%s: %.1f context switches per second", unit, float64(n)/took)
			sum += n
		}
		t.Logf("all: %.1f per second", float64(sum)/took)
		return float64(sum) <= float64(limit)*took
	})
	h.Eventually(time.Minute, "the agent has unmapped what only its start needs", func() bool {
		resident := h.memory("outrider", "RssFile")
		t.Logf("%d kB of its program are resident", resident>>10)
		return resident < idleProgram
	})
}
