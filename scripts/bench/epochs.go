package main

import (
	"fmt"
	"os"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// Marks in a load's report.
const (
	markSwitch = "switch"      // reload requested
	markExit   = "parent exit" // the previous epoch has ended
	markAlone  = "alone"       // a standalone Envoy was started for comparison
)

// baseIDAlone returns the base ID of Envoys for comparison, unique to this process.
func baseIDAlone() int { return 1_000_000 + os.Getpid()%1_000_000 }

type epochsResult struct {
	Epochs int             `json:"epochs"`
	Load   load.Report     `json:"load"`
	Blip   time.Duration   `json:"blip_ns"`  // maximum latency in the seconds of the switches
	Quiet  time.Duration   `json:"quiet_ns"` // maximum latency in undisturbed seconds
	Live   []time.Duration `json:"spawn_to_live_ns"`
	// Alone has the times of hot restarts of a standalone Envoy with an equal bootstrap.
	Alone       []time.Duration `json:"spawn_to_live_alone_ns"`
	LiveMedian  time.Duration   `json:"spawn_to_live_median_ns"`
	AloneMedian time.Duration   `json:"spawn_to_live_alone_median_ns"`
	Ratio       float64         `json:"ratio"`
	// ReloadMedian is the median duration of the reload command.
	ReloadMedian time.Duration `json:"reload_median_ns"`
}

// tunables returns the drop-in for epoch benchmarks.
func tunables(drain, shutdown time.Duration) string {
	return fmt.Sprintf(
		"[log]\nlevel = \"info\"\n[reload]\nwatch = false\n[envoy]\ndrain_duration = "+
			"%q\nparent_shutdown_duration = %q\n", drain, shutdown)
}

// epochs changes the epoch repeatedly, each time after the previous one has ended, and measures the
// effect on clients.
func epochs(t *stage, s settings) any {
	r := rig.New(t, rig.Options{TOML: tunables(s.drain, s.parentShutdown)})
	r.StartReady()
	folder := parts.ShortDir(t)
	bootstrap := static(t, r, true)
	defer removeSharedMemory(baseIDAlone())
	result := &epochsResult{Epochs: s.epochs}
	running := r.StartLoad(s.rate)
	time.Sleep(3 * time.Second) // undisturbed seconds for comparison
	var reloads []time.Duration
	for range s.epochs {
		before := r.LiveEpoch()
		running.Mark(markSwitch)
		begun := time.Now()
		if got := r.RunOutrider("reload"); got.ExitCode != 0 {
			t.Errorf("reload: exit %d: %s%s", got.ExitCode, got.Stdout, got.Stderr)
		}
		reloads = append(reloads, time.Since(begun))
		now := r.LiveEpoch()
		result.Live = append(result.Live, now.LiveSince.Sub(now.Started))
		rig.Eventually(t, s.parentShutdown+time.Minute, "the epoch before has ended",
			func() bool {
				if rig.ProcessExists(before.PID) {
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
	result.Blip, result.Quiet = result.Load.CompareMarkLatency(markSwitch)
	result.LiveMedian, result.AloneMedian, result.ReloadMedian = median(result.Live),
		median(result.Alone), median(reloads)
	result.Ratio = float64(result.LiveMedian) / float64(max(1, result.AloneMedian))
	fmt.Printf("requests %d, lost %d, to be tried again %d; generator late by %v at most\n",
		result.Load.Total, result.Load.Lost, result.Load.Retriable, result.Load.MaxSendDelay)
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

// hotRestartAlone hot-restarts a standalone Envoy and returns the time from exec to LIVE.
func hotRestartAlone(t *stage, folder string, bootstrap map[string]any) time.Duration {
	t.Helper()
	first := startAlone(t, folder, bootstrap, baseIDAlone(), 0, time.Second, 2*time.Second)
	second := startAlone(t, folder, bootstrap, baseIDAlone(), 1, time.Second, 2*time.Second)
	second.stop() // a stopped child also stops its parent
	first.stop()
	return second.took
}
