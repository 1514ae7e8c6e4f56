package main_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig/fault"
)

// moderate returns fault options with a load (360 requests a second) and a number of epochs that
// leave CPU time for other tests.
func moderate() fault.Options {
	return fault.Options{Rate: 0.2, Drain: time.Second, ParentShutdown: 3 * time.Second,
		ReloadSeconds: 6,
		Kills:         6, Flood: 5 * time.Second}
}

// rounds returns how often each fault is injected: $OUTRIDER_FAULTS, or once.
func rounds(t *testing.T) int {
	text := os.Getenv("OUTRIDER_FAULTS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("OUTRIDER_FAULTS=%s: a number of rounds", text)
	}
	return n
}

// mostTries bounds the attempts of a run that fails because the machine is too busy. A request that
// takes seconds may then outlive the epochs of the test, which end within three seconds.
const mostTries = 3

// try injects a fault, and repeats that if the machine is too busy.
func try(t *testing.T, one fault.Fault, options fault.Options) {
	t.Helper()
	for tries := 1; ; tries++ {
		outcome := fault.Run(t, one, options)
		t.Logf("%d requests, lost %d, pardoned %d, reuse %d, recovered after %v; slowest answer "+
			"%v, start of Envoy %v. %s", outcome.Requests, outcome.LostCount(),
			outcome.AllowedLosses, outcome.Retriable, outcome.RecoveryTime.Round(time.Millisecond),
			outcome.Slowest.Round(time.Millisecond),
			outcome.MaxEpochStartTime.Round(time.Millisecond), outcome.ExtraResult)
		if outcome.OK() {
			return
		}
		if !outcome.MachineBusy() || tries == mostTries {
			t.Fatalf("lost %v (allowed: %v); %s\n%v", outcome.Lost, one.AllowedHarm,
				strings.Join(outcome.Errors, "\n"), outcome.Report)
		}
		t.Logf("the machine is too busy to tell, once more: lost %v; %s", outcome.Lost,
			strings.Join(outcome.Errors, "\n"))
	}
}

// TestFaults injects every fault of Envoy, its keeper and the agent under load.
func TestFaults(t *testing.T) {
	for _, one := range fault.All() {
		t.Run(one.Name, func(t *testing.T) {
			t.Parallel()
			for range rounds(t) {
				try(t, one, moderate())
			}
		})
	}
}

// TestFaultsRaced injects the faults that cause the most concurrency in the agent. The agent is
// built with the race detector.
func TestFaultsRaced(t *testing.T) {
	options := moderate()
	options.Race, options.Kills = true, 4
	for _, name := range []string{"new killed", "parent killed at start", "keeper killed", "storm",
		"agent killed at random"} {
		one, found := fault.Find(name)
		if !found {
			t.Fatalf("no fault %q", name)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			try(t, one, options)
		})
	}
}
