package main_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// TestStop_DuringStartLeavesNothing stops the agent at different times during its start. It leaves
// neither sockets nor bootstraps behind.
func TestStop_DuringStartLeavesNothing(t *testing.T) {
	r := rig.New(t, rig.Options{})
	left := func() []string {
		var found []string
		for _, pattern := range []string{"run/*.sock", "run/envoy/*.sock", "run/envoy/envoy-rev*"} {
			names, err := filepath.Glob(filepath.Join(r.Dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, names...)
		}
		return found
	}
	stop := func(daemon *rig.Daemon) (found []string) {
		t.Helper()
		if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if daemon.Wait(t, 60*time.Second) != 0 {
			return nil // the signal has killed the agent before it handled signals
		}
		return left()
	}
	if ordinary := stop(r.StartReady()); len(ordinary) > 0 {
		t.Fatalf("an ordinary stop leaves %q", ordinary)
	}
	for after := 6 * time.Millisecond; after < 50*time.Millisecond; after += 4 * time.Millisecond {
		daemon := r.Start()
		time.Sleep(after) //house:sleep how long the agent runs before the stop varies
		if found := stop(daemon); len(found) > 0 {
			t.Errorf("stopped after %v, it leaves %q", after, found)
		}
	}
}

// TestStart_BadConfigurationKeepsLastGood kills the agent while no Envoy runs, and starts another
// one with a configuration for which Envoy cannot start. The agent serves with the last good
// configuration.
func TestStart_BadConfigurationKeepsLastGood(t *testing.T) {
	t.Parallel()
	const toml = "[envoy]\nrestart_backoff_min = \"50s\"\nrestart_backoff_max = \"60s\"\n"
	r := rig.New(t, rig.Options{TOML: toml})
	r.StartReady()
	first := r.LiveEpoch().PID
	r.Signal(first, syscall.SIGKILL)
	rig.Eventually(t, time.Minute, "the guard has brought Envoy back", func() bool {
		ready, _ := r.Ready()
		now := r.ProcessIDs("envoy") // the killed Envoy may not have exited yet
		return ready && len(now) == 1 && now[0] != first
	})
	r.Signal(r.LiveEpoch().PID, syscall.SIGKILL)
	rig.Eventually(t, time.Minute, "the guard waits",
		func() bool { return len(r.ProcessIDs("envoy")) == 0 })
	r.KillAgent()
	r.WriteFile("bad.json", "{")
	r.SetTOML(toml + fmt.Sprintf("bootstrap_override = %q\n", filepath.Join(r.Dir, "bad.json")))
	daemon := r.StartReady()
	if code, _, err := r.GetThroughEnvoy("/hello"); code != 200 {
		t.Errorf("what worked: %d, %v", code, err)
	}
	rig.Eventually(t, time.Minute, "the status names the refused configuration", func() bool {
		return strings.Contains(r.RunOutrider("status").Stdout, "configuration-refused")
	})
	if !daemon.Running() {
		t.Error("the agent has exited")
	}
	r.SetTOML(toml)
	if told := r.RunOutrider("reload"); told.ExitCode != 0 {
		t.Errorf("reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
}
