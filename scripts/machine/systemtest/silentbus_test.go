package systemtest

import (
	"strings"
	"testing"
	"time"
)

// If the bus does not respond for seconds while an upgrade restarts the agent, as on a slow
// machine, the agent waits, and Envoy continues.
func TestRestart_KeepsEnvoyWhileTheBusIsSilent(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	before, agent := h.LiveEpoch(), h.MainPID("outrider")
	h.MustRun(t, "systemctl", "kill", "-s", "STOP", "dbus.service")
	restarted := make(chan error, 1)
	go func() {
		_, err := h.Run(t.Context(), "systemctl", "restart", "outrider.service")
		restarted <- err
	}()
	h.Eventually(time.Minute, "the agent waits for the answer, or has ended without",
		func() bool {
			waits := strings.Contains(h.Journal("-u", "outrider.service"),
				"waiting for systemd to report")
			return waits || h.MainPID("outrider") != agent
		})
	h.MustServe()
	h.MustRun(t, "systemctl", "kill", "-s", "CONT", "dbus.service")
	if err := <-restarted; err != nil {
		t.Error(err)
	}
	h.MustServe()
	if after := h.LiveEpoch(); after.PID != before.PID || h.MainPID("outrider") == agent {
		t.Errorf("agent %d became %d; Envoy %d became %d",
			agent, h.MainPID("outrider"), before.PID, after.PID)
	}
}
