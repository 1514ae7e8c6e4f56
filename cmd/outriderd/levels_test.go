package main_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// Envoy has the configured log levels after a crash of Envoy, and after they were changed while no
// agent ran.
func TestLogLevels_OutliveEnvoyAndAgent(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	eventually := func(want string) {
		t.Helper()
		rig.Eventually(t, time.Minute, "Envoy logs at "+want, func() bool {
			var levels api.LogLevels
			r.RunOutriderJSON(&levels, "log-level")
			return levels.Envoy == want
		})
	}
	r.SetTOML("[envoy]\nlog_level = \"info\"\n")
	eventually("info")
	before := current(t, r)
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "Envoy is started again", func() bool {
		var status api.Status
		r.RunOutriderJSON(&status, "status")
		return slices.ContainsFunc(status.Epochs, func(e api.Epoch) bool {
			return e.State == api.EpochLive && e.PID != before.PID
		})
	})
	eventually("info")

	r.KillAgent()
	r.SetTOML("[envoy]\nlog_level = \"error\"\n")
	r.StartReady()
	eventually("error")
	if result := r.RunOutrider("log-level", "envoy=debug"); result.ExitCode != 0 {
		t.Fatal(result.Stderr)
	}
	r.KillAgent()
	r.StartReady()
	// A restarted agent retains the level that outrider log-level has set, unless the level in the
	// configuration has changed.
	eventually("debug")
}
