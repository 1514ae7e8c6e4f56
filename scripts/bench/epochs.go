package main

import (
	"fmt"
	"os"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// The marks in a load's report.
const (
	markSwitch = "switch"      // a reload was asked for
	markExit   = "parent exit" // the epoch before has ended
	markAlone  = "alone"       // an Envoy alone was started beside it, for comparison
)

// baseIDAlone is the base id of Envoys that run for comparison: of this process's own.
func baseIDAlone() int { return 1_000_000 + os.Getpid()%1_000_000 }

type epochsResult struct {
	Epochs int             `json:"epochs"`
	Load   load.Report     `json:"load"`
	Blip   time.Duration   `json:"blip_ns"`  // largest latency in the seconds of the switches
	Quiet  time.Duration   `json:"quiet_ns"` // and in those far from anything
	Live   []time.Duration `json:"spawn_to_live_ns"`
	// hot restarts of an Envoy alone, with an equal bootstrap
	Alone       []time.Duration `json:"spawn_to_live_alone_ns"`
	LiveMedian  time.Duration   `json:"spawn_to_live_median_ns"`
	AloneMedian time.Duration   `json:"spawn_to_live_alone_median_ns"`
	Ratio       float64         `json:"ratio"`
	// of the command, from its start to its end
	ReloadMedian time.Duration `json:"reload_median_ns"`
}

// tunables is the drop-in of a bench of epochs.
func tunables(drain, shutdown time.Duration) string {
	return fmt.Sprintf(
		"[log]\nlevel = \"info\"\n[reload]\nwatch = false\n[envoy]\ndrain_duration = "+
			"%q\nparent_shutdown_duration = %q\n", drain, shutdown)
}

// epochs changes the epoch again and again, each time after the one before has ended, and looks at
// what callers see of it.
func epochs(t *stage, s settings) any {
	r := rig.New(t, rig.Options{TOML: tunables(s.drain, s.parentShutdown)})
	r.StartReady()
	folder := parts.ShortDir(t)
	bootstrap := static(t, r, true)
	defer removeSharedMemory(baseIDAlone())
	result := &epochsResult{Epochs: s.epochs}
	running := r.StartLoad(s.rate)
	time.Sleep(3 * time.Second) // quiet seconds to compare with
	var reloads []time.Duration
	for range s.epochs {
		before := r.Live()
		running.Mark(markSwitch)
		begun := time.Now()
		if got := r.Outrider("reload"); got.Exit != 0 {
			t.Errorf("reload: exit %d: %s%s", got.Exit, got.Out, got.Err)
		}
		reloads = append(reloads, time.Since(begun))
		now := r.Live()
		result.Live = append(result.Live, now.Live.Sub(now.Started))
		rig.Eventually(t, s.parentShutdown+10*time.Second, "the epoch before has ended",
			func() bool {
				if rig.Alive(before.PID) {
					time.Sleep(20 * time.Millisecond)
					return false
				}
				return true
			})
		running.Mark(markExit)
		time.Sleep(2500 * time.Millisecond)
		running.Mark(markAlone)
		result.Alone = append(result.Alone, hotRestartAlone(t, folder, bootstrap))
		time.Sleep(2500 * time.Millisecond)
	}
	result.Load = running.Stop()
	result.Blip, result.Quiet = result.Load.Blip(markSwitch)
	result.LiveMedian, result.AloneMedian, result.ReloadMedian = median(result.Live),
		median(result.Alone), median(reloads)
	result.Ratio = float64(result.LiveMedian) / float64(max(1, result.AloneMedian))
	fmt.Printf("requests %d, lost %d, to be tried again %d; generator late by %v at most\n",
		result.Load.Total, result.Load.Lost, result.Load.Reuse, result.Load.Stall)
	fmt.Printf("blip %s, quiet maximum %s\n", millis(result.Blip), millis(result.Quiet))
	fmt.Printf("spawn to LIVE: median %s, Envoy alone %s: ratio %.2f; reload command %s\n",
		millis(result.LiveMedian), millis(result.AloneMedian),
		result.Ratio, millis(result.ReloadMedian))
	if result.Load.Lost > 0 {
		t.Errorf("lost %d requests\n%v", result.Load.Lost, result.Load)
	}
	t.target(s, result.Ratio <= 1.2,
		"spawn to LIVE is %.2f times that of Envoy alone, not at most 1.2", result.Ratio)
	t.target(s, result.Blip <= result.Quiet,
		"the slowest answer in the seconds of the switches took %s, in quiet ones %s",
		millis(result.Blip), millis(result.Quiet))
	if err := writePlots(s.out, result.plots()); err != nil {
		t.Error(err)
	}
	return result
}

// hotRestartAlone is how long Envoy alone takes from its exec to LIVE when it takes over from
// another one.
func hotRestartAlone(t *stage, folder string, bootstrap map[string]any) time.Duration {
	t.Helper()
	first := startAlone(t, folder, bootstrap, baseIDAlone(), 0, time.Second, 2*time.Second)
	second := startAlone(t, folder, bootstrap, baseIDAlone(), 1, time.Second, 2*time.Second)
	second.stop() // takes the first one with it
	first.stop()
	return second.took
}
