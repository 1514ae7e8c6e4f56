package systemtest

import (
	"fmt"
	"strings"
	"testing"
)

// Agent, keeper and Envoy dump no core, and no other process of the agent's or the keeper's user
// reads their memory, while the keeper still finds its Envoys' sockets.
func TestSecrecy_NoCoreAndNoTracing(t *testing.T) {
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.Serves()
	agent, keeper := h.MainPID("outrider.service"), h.MainPID("outrider-envoy.service")
	envoy := h.Live().PID
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
		{"Envoy", "outrider-envoy", envoy}, // without its capability
	} {
		if _, err := h.Run(t.Context(), "runuser", "-u", c.user, "--", "sh", "-c",
			fmt.Sprintf("exec 3</proc/%d/mem", c.pid)); err == nil {
			t.Errorf("%s reads the memory of %s", c.user, c.name)
		}
	}
	// A reload starts and ends an epoch: the keeper closes the listeners of the old one.
	h.Write("/etc/outrider/conf.d/50-more.toml", "[envoy]\nconcurrency = 1\n")
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	h.Serves()
	h.MustRun(t, "systemctl", "reload", "outrider-envoy.service") // executes itself again
	h.Serves()
	if out, err := h.Run(t.Context(), "runuser", "-u", "outrider-envoy", "--", "ls",
		fmt.Sprintf("/proc/%d/fd/", keeper)); err == nil {
		t.Errorf("after its upgrade the keeper is readable: %s", out)
	}
	if problems := h.Journal("-u", "outrider*", "-p", "warning", "-o", "cat"); strings.Contains(
		problems, "sockets of process") {
		t.Errorf("the journal:\n%s", problems)
	}
}
