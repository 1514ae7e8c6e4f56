package main_test

import (
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/rig"
	"outrider.org/outrider/scripts/rig/fault"
)

// A stop under load drains Envoy. While the listeners are open, Envoy requests clients to
// reconnect; afterwards new connections are refused. No request is cut off.
func TestStop_UnderLoadCutsNoExchange(t *testing.T) {
	r := rig.New(t, rig.Options{})
	daemon := r.StartReady()
	running := r.StartLoad(0.25)
	rig.Eventually(t, time.Minute, "the load runs, and has its 86 connections",
		func() bool { return r.LiveEpoch().Connections >= 86 })
	running.Mark("stop")
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "new connections are refused",
		func() bool { _, _, err := r.GetThroughEnvoy("/"); return err != nil })
	report := running.Stop()
	if exit := daemon.Wait(t, 30*time.Second); exit != 0 {
		t.Errorf("exit %d", exit)
	}
	for name, class := range report.Classes {
		t.Logf("%s: %v", name, class.Outcomes)
		if name != "tcp" &&
			class.Outcomes[load.OutcomeHardReset]+class.Outcomes[load.OutcomeTimeout] > 0 {
			t.Errorf("the stop cut exchanges of %s: %v", name, class.Outcomes)
		}
	}
	if report.Total < 100 {
		t.Errorf("only %d requests were made", report.Total)
	}
}

// A starting epoch has made the live one close its admin interface, so the agent cannot query the
// live one. A stop ends the starting epoch, and still cuts off no request of the live one.
func TestStop_WithoutAdminCutsNoRequest(t *testing.T) {
	t.Parallel()
	// longest is the maximum drain duration. Envoy's idle connection to the backend stays open
	// longer, and must not delay the stop.
	const longest = 40 * time.Second
	// The slow request begins during this minimum drain time, and ends after it.
	const drain = 4 * time.Second
	toml := fmt.Sprintf(
		"[reload]\nwatch = false\n[envoy]\ntermination_drain_duration = "+
			"%q\nmaximum_drain_duration = %q\n", drain, longest)
	r := rig.New(t, rig.Options{TOML: toml})
	daemon := r.StartReady()
	blackHole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blackHole.Close() }()
	r.WriteFile("override.json", fault.NeverLiveConfig(blackHole.Addr().(*net.TCPAddr).Port))
	r.SetTOML(toml + fmt.Sprintf("bootstrap_override = %q\n",
		filepath.Join(r.Dir, "override.json")))
	reloaded := make(chan rig.CommandResult, 1)
	go func() { reloaded <- r.RunOutrider("reload") }()
	r.AwaitEpochState(api.EpochStarting, time.Minute)
	rig.Eventually(t, time.Minute, "the admin interface is closed",
		func() bool { return r.CheckAdmin() != nil })

	began := time.Now()
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "the agent is stopping",
		func() bool { ready, _ := r.Ready(); return !ready })
	if code, body, err := r.GetSlowThroughEnvoy("/sleep/8s"); err != nil || code != 200 {
		t.Errorf("a request that came in time: %d %q %v", code, body, err)
	}
	if took := time.Since(began); took < 8*time.Second {
		t.Errorf("the request took %v", took)
	}
	if code, _, err := r.GetThroughEnvoy("/"); err == nil {
		t.Errorf("a request is still taken: %d", code)
	}
	if exit := daemon.Wait(t, 30*time.Second); exit != 0 {
		t.Errorf("exit %d", exit)
	}
	if took := time.Since(began); took > longest/2 {
		t.Errorf("the stop took %v, the request 8 seconds of it", took)
	}
	if result := <-reloaded; result.ExitCode == 0 {
		t.Errorf("the reload: %+v", result)
	}
}
