package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

func TestExitCodes(t *testing.T) {
	r := rig.New(t, rig.Options{})
	for _, c := range []struct {
		name, toml string
		exit       int
		says       string
	}{
		{"invalid configuration", "[envoy]\nlog_level = \"loud\"\n", 78, "log_level"},
		{"no Envoy", "[envoy]\nbinary = \"/nonexistent/envoy\"\n", 69, "/nonexistent/envoy"},
	} {
		r.SetTOML(c.toml)
		daemon := r.Start()
		if exit := daemon.Wait(t, 30*time.Second); exit != c.exit ||
			!strings.Contains(daemon.Output(), c.says) {
			t.Errorf("%s: exit %d: %s", c.name, exit, daemon.Output())
		}
	}
	// --check exits with the same code as a start with this configuration.
	for _, c := range []struct {
		name, toml string
		exit       int
		says       string
	}{
		{"valid", "", 0, "configuration is valid"},
		{"a missing template", "[envoy]\ntemplate_file = \"missing.tmpl\"\n", 78,
			"50-test.toml:2:1: envoy.template_file"},
		{"no Envoy", "[envoy]\nbinary = \"/nonexistent/envoy\"\n", 69,
			"50-test.toml:2:1: envoy.binary"},
		{"no Envoy and more",
			"[envoy]\nbinary = \"/nonexistent/envoy\"\ncustom_config_file = \"missing.json\"\n", 78,
			"50-test.toml:3:1: envoy.custom_config_file"},
	} {
		r.SetTOML(c.toml)
		daemon := r.Start("--check")
		if exit := daemon.Wait(t, 60*time.Second); exit != c.exit ||
			!strings.Contains(daemon.Output(), c.says) {
			t.Errorf("check, %s: exit %d: %s", c.name, exit, daemon.Output())
		}
	}
	// dying is an Envoy that always exits with an error.
	dying := filepath.Join(r.Dir, "dying")
	if err := os.WriteFile(dying, []byte(parts.FailingEnvoy), 0o755); err != nil {
		t.Fatal(err)
	}
	r.SetTOML(fmt.Sprintf("[envoy]\nbinary = %q\nrestart_limit = 2\nrestart_backoff_min = \"10ms\"\n",
		dying))
	daemon := r.Start()
	if exit := daemon.Wait(t, 30*time.Second); exit != 75 || !strings.Contains(daemon.Output(),
		"it hurts") {
		t.Errorf("dying Envoy: exit %d: %s", exit, daemon.Output())
	}
}

// TestRestartLimit_KeeperDoesNotCount crashes Envoy as often as restart_limit permits, and then
// kills keepers: the agent starts Envoy again each time, because the end of a keeper does not
// count.
func TestRestartLimit_KeeperDoesNotCount(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{TOML: "[envoy]\nrestart_limit = 1\n"})
	daemon := r.StartReady()
	recovers := func(from api.Epoch, after string) {
		t.Helper()
		rig.Eventually(t, time.Minute, "another Envoy is live after "+after, func() bool {
			if !daemon.Running() {
				t.Fatalf("the agent ended after %s: %s", after, daemon.Output())
			}
			epochs, err := r.Epochs()
			return err == nil && slices.ContainsFunc(epochs, func(e api.Epoch) bool {
				return e.State == api.EpochLive && e.PID != from.PID
			})
		})
	}
	live := current(t, r)
	r.Signal(live.PID, syscall.SIGKILL)
	recovers(live, "a crash of Envoy")
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		live := current(t, r)
		keepers := r.ProcessIDs("outrider-keeper")
		if len(keepers) != 1 {
			t.Fatalf("keepers: %v", keepers)
		}
		r.Signal(keepers[0], signal)
		recovers(live, signal.String()+" of the keeper")
	}
}

// TestStart_NoticesACorrectionOfWhatItRefuses corrects an invalid configuration after a starting
// agent has read it, but before the agent watches it. The correction takes effect nevertheless.
func TestStart_NoticesACorrectionOfWhatItRefuses(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{})
	r.StartReady()
	before := current(t, r)
	r.KillAgent()
	r.SetTOML("[envoy]\ntemplate_file = \"missing.tmpl\"\n")
	keepers := r.ProcessIDs("outrider-keeper")
	if len(keepers) != 1 {
		t.Fatalf("keepers: %v", keepers)
	}
	resume := parts.PauseProcess(t, keepers[0])
	defer resume()
	daemon := r.Start()
	lock := filepath.Join(r.Dir, "run", "outriderd.lock")
	rig.Eventually(t, time.Minute, "the agent has read its configuration", func() bool {
		holder, err := os.ReadFile(lock)
		return err == nil && strings.TrimSpace(string(holder)) == strconv.Itoa(daemon.Process.Pid)
	})
	r.SetTOML("[log]\nlevel = \"info\"\n")
	resume()
	r.WaitReady(time.Minute)
	rig.Eventually(t, time.Minute, "the correction is in force", func() bool {
		var status api.Status
		r.RunOutriderJSON(&status, "status")
		return status.LastReload != nil && status.LastReload.Outcome != api.OutcomeRefused &&
			len(status.Conditions) == 0
	})
	if now := current(t, r); now.PID != before.PID {
		t.Errorf("Envoy %d was replaced by %d", before.PID, now.PID)
	}
}
