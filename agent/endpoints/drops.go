package endpoints

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// ConditionDropped is active while Envoy drops log entries or spans.
const ConditionDropped = "log-entries-dropped"

// DroppedTelemetryFilter selects the statistics of dropped log entries and spans.
const DroppedTelemetryFilter = `^(access_logs\..*\.logs_dropped|` +
	`tracing\..*\.(reports_(dropped|failed|skipped_no_cluster)|(spans|segments)_dropped))$`

// sharedDrops is the statistic of all gRPC access logs: those of MeshConfig's providers, and
// Outrider's log of failures.
const sharedDrops = "access_logs.grpc_access_log.logs_dropped"

// DroppedTelemetry are the counters that DroppedTelemetryFilter selects, of an epoch.
type DroppedTelemetry struct {
	Epoch  int
	Counts map[string]uint64
}

// dropState is the state of checkDrops.
type dropState struct {
	before   *DroppedTelemetry
	failures uint64    // Tracker.total at the last read
	at       time.Time // time of the last read
	last     time.Time // when Envoy last dropped something
}

// checkDrops reads how many log entries and spans Envoy has dropped, at most once per openPeriod.
// It raises a condition if the numbers have grown, and clears it half a minute after the last
// growth. It reads nothing if Envoy has a log of failures and MeshConfig has no providers.
func (t *Tracker) checkDrops(ctx context.Context, now time.Time) {
	blind := t.options.EnvoyHasNoFailureLog()
	t.mu.Lock()
	watched, failures := blind || len(t.providers) > 0, t.total
	t.mu.Unlock()
	d := &t.drops
	switch {
	case !watched:
		t.drops = dropState{}
		t.options.Conditions.Clear(ConditionDropped)
		return
	case now.Sub(d.at) < openPeriod:
		return
	}
	seen, err := t.options.ReadDroppedTelemetry(ctx)
	if err != nil {
		t.options.Logger.Debug("cannot read counters of dropped log entries and spans from Envoy",
			"error", err)
		return
	}
	before := dropState{before: d.before, failures: d.failures, at: d.at}
	d.before, d.failures, d.at = &seen, failures, now
	if before.before == nil || before.before.Epoch != seen.Epoch {
		return
	}
	// If the agent has read the log of failures at its maximum rate, Envoy has dropped further
	// entries of that log. They increase sharedDrops, which then proves nothing about the
	// providers.
	flood := failures-before.failures >= uint64(now.Sub(before.at)/readInterval)
	var kinds []string
	for _, name := range slices.Sorted(maps.Keys(seen.Counts)) {
		if seen.Counts[name] > before.before.Counts[name] && !(flood && name == sharedDrops) {
			kinds = append(kinds, kindOf(name))
		}
	}
	switch {
	case len(kinds) > 0:
		d.last = now
		t.options.Conditions.Raise(ConditionDropped, condition.Warning, "Envoy drops "+strings.Join(
			slices.Compact(kinds), " and ")+": the service that gets them is too slow or fails; "+
			"requests are not affected")
	case now.Sub(d.last) >= blindPeriod/2:
		t.options.Conditions.Clear(ConditionDropped)
	}
}

// kindOf returns what a statistic of DroppedTelemetryFilter counts.
func kindOf(name string) string {
	switch kind := strings.Split(name, "."); {
	case kind[0] == "tracing":
		return "spans for " + kind[1]
	case kind[1] == "grpc_access_log":
		return "log entries for gRPC access log services"
	default:
		return "log entries for OpenTelemetry"
	}
}
