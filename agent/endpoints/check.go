package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// Run reads Envoy's counters to find failures and successes. It looks for successes while an
// endpoint fails. It looks for failures while Envoy's listeners have no access log of failures, or
// while MeshConfig has extension providers, whose failures are not in that log. Otherwise Run
// sleeps. It ends with ctx.
func (t *Tracker) Run(ctx context.Context) error {
	t.MarkReady()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-t.wake:
		case <-ctx.Done():
			return nil
		}
		started := time.Now()
		t.takeProviders()
		if t.period() > 0 {
			t.check(ctx)
		}
		t.checkDrops(ctx, time.Now())
		pause := time.NewTimer(max(confirmAfter, costFactor*time.Since(started)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
		timer.Stop()
		if period := t.period(); period > 0 {
			timer.Reset(max(0, period-time.Since(started)))
		}
	}
}

// period returns the time between two checks; 0: none is needed.
func (t *Tracker) period() time.Duration {
	blind := t.options.EnvoyHasNoFailureLog()
	t.mu.Lock()
	defer t.mu.Unlock()
	watches := blind || len(t.providers) > 0
	if !watches {
		t.before = nil
	}
	if t.nowhere {
		return confirmAfter
	}
	confirmed := false
	for _, p := range t.failing {
		if p.undecided() {
			return confirmAfter
		}
		confirmed = confirmed || p.confirmed
	}
	switch {
	case confirmed:
		return openPeriod
	case watches:
		return blindPeriod
	}
	return 0
}

// check reads the counters and compares them with the previous ones. If they cannot be read, no
// problem ends, and no single failure becomes a problem.
func (t *Tracker) check(ctx context.Context) {
	blind := t.options.EnvoyHasNoFailureLog()
	t.findEmpty(ctx)
	seen, err := t.options.ReadCounters(ctx)
	if err != nil {
		t.options.Logger.Debug("cannot read counters of endpoints from Envoy", "error", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	looked := t.looked
	if err == nil {
		t.byClient, t.looked = seen.ClustersWithClientChosenEndpoints, now
	}
	if err == nil && (blind || len(t.providers) > 0) {
		t.compare(seen, blind, looked, now)
	}
	for key, p := range t.failing {
		switch {
		case now.Sub(p.LastFailure) >= forgetAfter && (p.confirmed || p.base == nil):
			t.end(p, "backend problem ended: no failure for five minutes")
			continue
		case err == nil && !seen.has(key):
			t.end(p, "backend problem ended: it is no longer configured")
			continue
		case err == nil && !t.fails(p, seen, now):
			continue
		}
		p.confirmed = p.confirmed || p.again() ||
			p.base != nil && !p.worked && now.Sub(p.Since) >= confirmAfter
	}
	t.publish()
}

// fails reports whether an endpoint that failed has had no success since its previous counters. If
// there were no previous counters, it returns false. A success ends the problem of the endpoint.
// Callers hold mu.
func (t *Tracker) fails(p *failing, seen Snapshot, now time.Time) bool {
	base, c := p.base, seen.of(p.Key)
	provider := t.providers[p.Cluster] != ""
	switch {
	case base == nil:
		p.base, p.worked = seen.only(p.Key), c.worked() || provider && c.Requests > c.Errors
		return false
	case base.Epoch != seen.Epoch && p.confirmed:
		// a new epoch's counters start at zero
		p.base, p.connected = &Snapshot{Epoch: seen.Epoch}, time.Time{}
		return true
	case base.Epoch != seen.Epoch:
		p.restart(seen) // the old epoch's last counters are unknown
		return false
	}
	since := base.Endpoints[p.Key]
	var succeeded bool
	if provider {
		succeeded = c.served(since, now.Sub(p.LastFailure))
	} else {
		succeeded = c.succeeded(since) || p.lasts(c, since, now)
	}
	switch {
	case succeeded && p.confirmed:
		t.end(p, "backend answers again")
	case succeeded:
		p.restart(seen)
	case c.failures() != since.failures():
		p.base = seen.only(p.Key)
	}
	return !succeeded
}

// lasts reports whether a connection of a protocol other than HTTP has been open without a failure
// for longer than connectedAfter: then it is established.
func (p *failing) lasts(c, since Counters, now time.Time) bool {
	switch {
	case c.Requests > 0 || c.ConnectFails != since.ConnectFails || c.begun() <= since.begun():
		p.connected = time.Time{}
	case p.connected.Before(p.LastFailure):
		p.connected = now
	}
	return !p.connected.IsZero() && now.Sub(p.connected) >= connectedAfter
}

// findEmpty records a failure for each cluster in which Envoy found no healthy endpoint since the
// previous call.
func (t *Tracker) findEmpty(ctx context.Context) {
	t.mu.Lock()
	nowhere := t.nowhere
	t.nowhere = false
	t.mu.Unlock()
	if !nowhere {
		return
	}
	now, err := t.options.RequestsWithoutEndpoint(ctx)
	if err != nil {
		t.options.Logger.Debug("cannot read from Envoy which clusters have no endpoint", "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for cluster, count := range now {
		if before := t.empty[cluster]; count != before && !ignored(cluster) {
			if count > before { // a lower count is from another epoch
				count -= before
			}
			t.report(EndpointFailure{Key{Cluster: cluster}, causeEmpty, count}, time.Now())
		}
	}
	t.empty = now
}

// end ends a problem. Callers hold mu.
func (t *Tracker) end(p *failing, message string) {
	delete(t.failing, p.Key)
	if p.confirmed {
		t.log(slog.LevelInfo, message, p.Key, "failures", p.Requests)
	}
}

// compare records the failures since the previous check, at the time looked, as the difference of
// the counters. If all is false, it considers only the endpoints of extension providers, because
// Envoy's log of failures reports those of the others. Callers hold mu.
func (t *Tracker) compare(seen Snapshot, all bool, looked, now time.Time) {
	before := t.before
	t.before = seen.failed()
	if before == nil { // without previous counters, the failures may be old
		return
	}
	for key, c := range t.before.Endpoints {
		provider := t.providers[key.Cluster] != ""
		if p := t.failing[key]; !all && (!provider || p != nil && p.LastFailure.After(looked)) {
			continue // reported by the log of failures
		}
		var old Counters
		if before.Epoch == seen.Epoch {
			old = before.Endpoints[key]
		}
		if c.ConnectFails > old.ConnectFails {
			t.report(EndpointFailure{key, "cannot connect", c.ConnectFails - old.ConnectFails}, now)
		}
		if c.Timeouts > old.Timeouts {
			t.report(EndpointFailure{key, "no answer in time", c.Timeouts - old.Timeouts}, now)
		}
		if provider && c.Errors > old.Errors && c.ConnectFails == old.ConnectFails &&
			c.Timeouts == old.Timeouts {
			t.report(EndpointFailure{key, "it answers with errors", c.Errors - old.Errors}, now)
		}
	}
}

// failed returns the counters of endpoints with failures.
func (s Snapshot) failed() *Snapshot {
	found := &Snapshot{Epoch: s.Epoch, Endpoints: map[Key]Counters{}}
	for key, c := range s.Endpoints {
		if c.failures() > 0 && !ignored(key.Cluster) {
			found.Endpoints[key] = c
		}
	}
	return found
}

// of returns the counters of an endpoint. For a cluster without a healthy endpoint, they are the
// sums over its endpoints.
func (s Snapshot) of(key Key) Counters {
	if key.Address != "" {
		return s.Endpoints[key]
	}
	var sum Counters
	for other, c := range s.Endpoints {
		if other.Cluster == key.Cluster {
			sum.Requests += c.Requests
			sum.Success += c.Success
			sum.Connects += c.Connects
			sum.ConnectFails += c.ConnectFails
			sum.ActiveConnections += c.ActiveConnections
		}
	}
	return sum
}

// only returns a Snapshot with the counters of one endpoint.
func (s Snapshot) only(key Key) *Snapshot {
	return &Snapshot{Epoch: s.Epoch, Endpoints: map[Key]Counters{key: s.of(key)}}
}

// has reports whether the epoch has an endpoint. It reports false for a cluster without endpoints,
// which Envoy does not list.
func (s Snapshot) has(key Key) bool {
	_, ok := s.Endpoints[key]
	return ok || key.Address == ""
}

// shown is the number of problems in the condition's sentence.
const shown = 5

// publish raises or clears the condition. Callers hold mu.
func (t *Tracker) publish() {
	all := t.problems()
	if len(all) == 0 {
		t.options.Conditions.Clear(ConditionFailing)
		return
	}
	var sentences []string
	for _, p := range all[:min(len(all), shown)] {
		sentences = append(sentences, p.String())
	}
	if len(all) > shown {
		sentences = append(sentences, fmt.Sprintf("and %d more: outrider proxy endpoints",
			len(all)-shown))
	}
	t.options.Conditions.Raise(ConditionFailing, condition.Error, strings.Join(sentences, "; "))
}

// String describes the problem: host, address, cause, and start. It contains no count, because each
// change of a condition's sentence would add a line to the journal.
func (p Problem) String() string {
	at := ""
	if p.Address != "" {
		at = " at " + p.Address
	}
	if p.Provider != "" {
		at += ", of " + p.Provider + ","
	}
	return fmt.Sprintf("backend %s%s fails: %s (since %s)", p.Host(), at, p.Cause,
		p.Since.Format(time.DateTime))
}
