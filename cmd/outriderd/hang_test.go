package main_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// While Envoy's admin interface or the keeper hangs, the status answers and says what a reload
// waits for. The reload ends, and later ones work.
func TestReload_AnswersWhileEnvoyOrKeeperHangs(t *testing.T) {
	for _, hangs := range []struct {
		program, toml, phase string
		outcome              api.Outcome
	}{
		{"envoy", "[envoy]\nlog_level = \"debug\"\n", "Envoy's log levels", api.OutcomeApplied},
		{"outrider-keeper", "[envoy]\nconnect_timeout = \"3s\"\n", "starting a new epoch", ""},
	} {
		t.Run(hangs.program, func(t *testing.T) {
			const unwatched = "[reload]\nwatch = false\n"
			r := rig.New(t, rig.Options{TOML: unwatched})
			r.StartReady()
			pid := r.Pids(hangs.program)[0]
			r.Signal(pid, syscall.SIGSTOP)
			resume := func() { r.Signal(pid, syscall.SIGCONT) }
			defer resume()
			r.Set(unwatched + hangs.toml)
			ended := make(chan rig.Result, 1)
			go func() { ended <- r.Outrider("reload", "--if-changed", "--json") }()
			rig.Eventually(t, time.Minute, "the status says what is waited for", func() bool {
				var status api.Status
				begun := time.Now()
				r.JSON(&status, "status")
				if took := time.Since(begun); took > 10*time.Second {
					t.Errorf("the status took %v", took)
				}
				return strings.Contains(status.Doing, hangs.phase)
			})
			if hangs.program != "envoy" { // only the keeper's answer ends the reload
				resume()
			}
			if got := <-ended; hangs.outcome != "" &&
				!strings.Contains(got.Out, string(hangs.outcome)) {
				t.Errorf("%+v", got)
			}
			resume()
			r.WaitReady(time.Minute)
			r.Set(unwatched + "[log]\nlevel = \"info\"\n")
			if got := r.Outrider("reload"); got.Exit != 0 {
				t.Errorf("the next reload: %+v", got)
			}
		})
	}
}
