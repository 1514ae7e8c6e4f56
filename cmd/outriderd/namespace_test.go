package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// TestNamespace_MovesWithItsObjects changes [node] namespace by reloads. The mesh objects name no
// namespace, so they are in the namespace of the proxy, and visible in no other one. Envoy serves
// them without a lost request.
func TestNamespace_MovesWithItsObjects(t *testing.T) {
	t.Parallel()
	const toml = "[envoy]\ndrain_duration = \"2s\"\nparent_shutdown_duration = \"4s\"\n"
	const watch = "[reload]\nwatch = false\n"
	r := rig.New(t, rig.Options{Race: true, TOML: toml + watch})
	private := func(resolution string) {
		web := strings.Replace(r.WebServiceYAML(r.Ports.Backend), "STATIC", resolution, 1)
		r.WriteFile("mesh.d/web.yaml", strings.Replace(strings.Replace(web,
			"  namespace: default\n",
			"", 1), "spec:\n", "spec:\n  exportTo: [\".\"]\n", 1))
	}
	private("STATIC")
	r.StartReady()
	stop := asking(r)
	follows := follower(t, r, "", "  exportTo: [\".\"]\n")
	follows("at first")
	move := func(namespace string) {
		t.Helper()
		r.SetTOML(toml + watch + fmt.Sprintf("[node]\nnamespace = %q\n", namespace))
		if told := r.RunOutrider("reload"); told.ExitCode != 0 {
			t.Fatalf("reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
		}
		follows("in " + namespace)
	}
	move("shop")
	rig.Eventually(t, time.Minute, "the older epoch has ended",
		func() bool { return len(r.ProcessIDs("envoy")) == 1 })
	follows("once the older epoch has ended")

	r.SetTOML(toml + fmt.Sprintf("bootstrap_override = %q\n", badBootstrap(r)) + watch +
		"[node]\nnamespace = \"bank\"\n")
	if told := r.RunOutrider("reload"); told.ExitCode != api.ExitRefused {
		t.Errorf("a bad reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	follows("after what was refused")
	if told := r.RunOutrider("proxy", "clusters", "--json"); told.ExitCode != 0 ||
		!strings.Contains(told.Stdout, "shop") || strings.Contains(told.Stdout, "bank") {
		t.Errorf("after what was refused: %s%s", told.Stdout, told.Stderr)
	}
	move("bank")
	move("shop") // epochs with either namespace may run at the same time

	// The last good version of an object that has become invalid remains in force when the
	// namespace changes, and when another agent starts.
	private("STATISCH")
	rig.Eventually(t, time.Minute, "the agent has read the bad file",
		func() bool { return r.RunOutrider("mesh", "check").ExitCode == api.ExitRefused })
	move("mall")
	if told := r.RunOutrider("mesh", "check"); !strings.Contains(told.Stderr, "ServiceEntry mall/web") ||
		strings.Contains(told.Stderr, "shop/web") {
		t.Errorf("check: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	r.KillAgent()
	r.StartReady()
	follows("of the next agent")
	private("STATIC")

	// The next agent is configured with another namespace than the Envoy that it adopts.
	adopted := r.LiveEpoch().PID
	r.KillAgent()
	r.SetTOML(toml + watch + "[node]\nnamespace = \"attic\"\n")
	r.StartReady()
	rig.Eventually(t, time.Minute, "the Envoy of the next agent is live",
		func() bool { return r.LiveEpoch().PID != adopted })
	follows("while Envoys of both agents live")
	rig.Eventually(t, time.Minute, "the older epoch has ended",
		func() bool { return len(r.ProcessIDs("envoy")) == 1 })
	follows("of the next agent's alone")
	if lost := stop(); len(lost) > 0 {
		t.Errorf("%d requests were lost: %q", len(lost), lost)
	}
}
