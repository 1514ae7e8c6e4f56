package rig

import (
	"context"
	"fmt"
	"testing"

	"outrider.org/outrider/scripts/load"
)

// Load is the standard load, or a part of it, on the rig's listeners, from a process of its own.
type Load struct {
	t       testing.TB
	process *load.Process
}

// StartLoad starts the load; rate is a factor on the standard one (1: 1800 requests/s). It ends
// with the test at the latest.
func (r *Rig) StartLoad(rate float64) *Load {
	r.t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", r.Ports.HTTP)
	return StartLoad(r.t, load.Config{HTTP: address, HTTP2: address,
		TCP: fmt.Sprintf("127.0.0.1:%d", r.Ports.TCP), Host: "web.test", Rate: rate})
}

// StartLoad starts any load in a process of its own.
func StartLoad(t testing.TB, config load.Config) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	process, err := load.StartProcess(ctx, config)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel() // kills it, unless it has ended
		_, _ = process.Stop()
	})
	return &Load{t: t, process: process}
}

// Mark notes in the report that something happened now.
func (l *Load) Mark(label string) {
	l.t.Helper()
	if err := l.process.Mark(label); err != nil {
		l.t.Errorf("mark %q: %v", label, err)
	}
}

// Stop ends the load and returns its report.
func (l *Load) Stop() load.Report {
	l.t.Helper()
	report, err := l.process.Stop()
	if err != nil {
		l.t.Fatal(err)
	}
	return report
}

// Losses are the requests of a report that were lost, by outcome, without those that began in the
// given seconds and ended in one of the allowed ways. No allowed ways: all that were lost in these
// seconds are left out.
func Losses(report load.Report, seconds map[int]bool,
	allowed ...load.Outcome) map[load.Outcome]int {
	lost := map[load.Outcome]int{}
	for _, second := range report.Seconds {
		for outcome, n := range second.Errors {
			pardoned := seconds[second.Second] && len(allowed) == 0
			for _, one := range allowed {
				pardoned = pardoned || seconds[second.Second] && outcome == one
			}
			if outcome != load.OutcomeReuseEOF && !pardoned {
				lost[outcome] += n
			}
		}
	}
	return lost
}
