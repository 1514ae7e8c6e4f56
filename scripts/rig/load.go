package rig

import (
	"context"
	"fmt"
	"testing"

	"outrider.org/outrider/scripts/load"
)

// Load is a load on the rig's listeners. A separate process generates it.
type Load struct {
	t       testing.TB
	process *load.Process
}

// StartLoad starts a load whose rate is relative to the standard load of 1800 requests/s. The load
// ends when Stop is called or the test ends.
func (r *Rig) StartLoad(rate float64) *Load {
	r.t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", r.Ports.HTTP)
	return StartLoad(r.t, load.Config{HTTPAddress: address, HTTP2Address: address,
		TCPAddress: fmt.Sprintf("127.0.0.1:%d", r.Ports.TCP), Host: "web.test", Rate: rate})
}

// StartLoad starts a load with a configuration. It ends when Stop is called or the test ends.
func StartLoad(t testing.TB, config load.Config) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	process, err := load.StartProcess(ctx, config)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel() // kills the process if it is still running
		_, _ = process.Stop()
	})
	return &Load{t: t, process: process}
}

// Mark adds a mark to the report at the current time.
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

// CountLosses returns the number of lost requests in a report by outcome. It ignores a request that
// was due in one of the seconds if its outcome is in allowed, or with any outcome if allowed is
// empty.
func CountLosses(report load.Report, seconds map[int]bool,
	allowed ...load.Outcome) map[load.Outcome]int {
	lost := map[load.Outcome]int{}
	for _, second := range report.Seconds {
		for outcome, n := range second.Errors {
			pardoned := seconds[second.Second] && len(allowed) == 0
			for _, one := range allowed {
				pardoned = pardoned || seconds[second.Second] && outcome == one
			}
			if outcome != load.OutcomeRetriable && !pardoned {
				lost[outcome] += n
			}
		}
	}
	return lost
}
