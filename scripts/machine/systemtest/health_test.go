package systemtest

import (
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
)

// The health of a workload can be the state of a unit or the exit status of a command. A reload
// that changes the probe starts no new epoch.
func TestHealth_UnitAndCommand(t *testing.T) {
	t.Parallel()
	c := newCertified(t)
	c.startIstiod()
	configure := func(probe string) {
		c.WriteText("/etc/outrider/conf.d/70-health.toml", "[discovery]\naddress = "+
			"\"127.0.0.1:15110\"\n"+
			"auth = \"none\"\n[health]\n"+probe+"\nperiod = \"200ms\"\ntimeout = \"5s\"\n")
	}
	expect := func(state, reason string) {
		t.Helper()
		var last api.Health
		c.Eventually(time.Minute, "the workload is "+state+": "+reason, func() bool {
			if h := c.Status().Health; h != nil {
				last = *h
			}
			return last.State == state && last.Reason == reason
		})
	}
	configure(`unit = "backend.service"`)
	c.MustRun(t, "systemctl", "start", "outrider.service")
	expect("healthy", "")
	c.MustRun(t, "systemctl", "stop", "backend.service")
	expect("unhealthy", "backend.service is inactive")
	c.startBackend()
	expect("healthy", "")

	epoch := c.Status().CurrentEpoch
	configure(`exec = ["sh", "-c", "echo down; exit 1"]`)
	c.MustRun(t, "outrider", "reload", "--if-changed")
	expect("unhealthy", "exit status 1: down; it runs without rights and network: use http, tcp or "+
		"unit if it needs them")
	if now := c.Status().CurrentEpoch; epoch == nil || now == nil || *now != *epoch {
		t.Errorf("epoch %v instead of %v", now, epoch)
	}
}
