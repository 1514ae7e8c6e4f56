package main

import (
	"fmt"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

type restartResult struct {
	Outrider load.Report `json:"outrider"`
	Plain    load.Report `json:"plain"`
}

// restarts is the number of configuration changes of each variant.
const restarts = 3

// restart compares a change of epoch with stopping and starting a plain Envoy with the same
// configuration and ports (SIGTERM, wait, start), as `systemctl restart` does.
func restart(t *stage, s settings) any {
	every := s.parentShutdown + 4*time.Second
	result := &restartResult{}
	r := rig.New(t, rig.Options{TOML: tunables(s.drain, s.parentShutdown)})
	daemon := r.StartReady()
	bootstrap := static(t, r, false)
	result.Outrider = changing(r.StartLoad(s.rate), every, func() {
		if got := r.RunOutrider("reload"); got.ExitCode != 0 {
			t.Errorf("reload: exit %d: %s%s", got.ExitCode, got.Stdout, got.Stderr)
		}
	})
	_ = daemon.Process.Kill()
	daemon.Wait(t, 10*time.Second)
	for _, pid := range r.ProcessIDs("outrider-keeper") {
		r.Signal(pid, 9)
	}
	rig.Eventually(t, time.Minute, "Outrider's Envoys are gone",
		func() bool { return len(r.ProcessIDs("envoy")) == 0 })

	folder := parts.ShortDir(t)
	defer removeSharedMemory(baseIDAlone())
	plain := startAlone(t, folder, bootstrap, baseIDAlone(), 0, s.drain, s.parentShutdown)
	result.Plain = changing(r.StartLoad(s.rate), every, func() {
		plain.stop()
		plain = startAlone(t, folder, bootstrap, baseIDAlone(), 0, s.drain, s.parentShutdown)
	})
	plain.stop()
	for _, one := range []struct {
		name   string
		report load.Report
	}{{"outrider reload", result.Outrider}, {"stop and start of a plain Envoy", result.Plain}} {
		blip, quiet := one.report.CompareMarkLatency(markSwitch)
		fmt.Printf("%-32s %d requests, lost %d, to be tried again %d; blip %s, quiet maximum %s\n",
			one.name, one.report.Total, one.report.Lost,
			one.report.Retriable, millis(blip), millis(quiet))
	}
	if result.Outrider.Lost > 0 {
		t.Errorf("lost %d requests\n%v", result.Outrider.Lost, result.Outrider)
	}
	if err := writePlots(s.out, result.plots()); err != nil {
		t.Error(err)
	}
	return result
}

// changing calls change at an interval under load.
func changing(running *rig.Load, every time.Duration, change func()) load.Report {
	time.Sleep(every / 2)
	for range restarts {
		running.Mark(markSwitch)
		begun := time.Now()
		change()
		time.Sleep(time.Until(begun.Add(every)))
	}
	return running.Stop()
}
