package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// Run looks for successes while endpoints fail, and for failures in blind mode, until ctx ends. It
// never wakes an agent whose endpoints work and report their failures.
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
		if t.period() > 0 {
			t.check(ctx)
		}
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
	blind := t.options.Blind()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !blind {
		t.before = nil
	}
	if t.nowhere {
		return confirmAfter
	}
	for _, p := range t.failing {
		if !p.confirmed {
			return confirmAfter
		}
	}
	switch {
	case len(t.failing) > 0:
		return openPeriod
	case blind:
		return blindPeriod
	}
	return 0
}

// check compares the counters with those before. Counters that cannot be read confirm a problem and
// never end one.
func (t *Tracker) check(ctx context.Context) {
	blind := t.options.Blind()
	t.findEmpty(ctx)
	seen, err := t.options.Read(ctx)
	if err != nil {
		t.options.Logger.Debug("cannot read the counters of endpoints", "error", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if err == nil && blind {
		t.compare(seen, now)
	}
	for key, p := range t.failing {
		base := p.base
		switch {
		case now.Sub(p.Last) >= forgetAfter:
			t.end(p, "backend problem ended: no failure for five minutes")
			continue
		case err == nil && !seen.has(key):
			t.end(p, "backend problem ended: it is no longer configured")
			continue
		case err == nil && (base == nil || base.Epoch != seen.Epoch):
			p.base = seen.only(key)
			if base == nil {
				continue
			}
		case err == nil && seen.succeeded(key, *base):
			t.end(p, "backend answers again")
			continue
		case err == nil && seen.of(key).ConnectFails != base.Hosts[key].ConnectFails:
			p.base = seen.only(key)
		}
		p.confirmed = p.confirmed || now.Sub(p.Since) >= confirmAfter
	}
	t.publish()
}

// findEmpty reports the clusters that had no healthy endpoint since the last time.
func (t *Tracker) findEmpty(ctx context.Context) {
	t.mu.Lock()
	nowhere := t.nowhere
	t.nowhere = false
	t.mu.Unlock()
	if !nowhere {
		return
	}
	now, err := t.options.Empty(ctx)
	if err != nil {
		t.options.Logger.Debug("cannot read which clusters have no endpoint", "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for cluster, count := range now {
		if before := t.empty[cluster]; count != before && !ignored(cluster) {
			if count > before { // otherwise another epoch answers
				count -= before
			}
			t.report(Failure{Key{Cluster: cluster}, causeEmpty, count}, time.Now())
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

// compare reports the failures that the counters show since the last look. Callers hold mu.
func (t *Tracker) compare(seen Snapshot, now time.Time) {
	before := t.before
	t.before = seen.failed()
	if before == nil { // failures may be old
		return
	}
	for key, c := range t.before.Hosts {
		var old Counters
		if before.Epoch == seen.Epoch {
			old = before.Hosts[key]
		}
		if c.ConnectFails > old.ConnectFails {
			t.report(Failure{key, "cannot connect", c.ConnectFails - old.ConnectFails}, now)
		}
		if c.Timeouts > old.Timeouts {
			t.report(Failure{key, "no answer in time", c.Timeouts - old.Timeouts}, now)
		}
	}
}

// failed returns the counters of endpoints with failures.
func (s Snapshot) failed() *Snapshot {
	found := &Snapshot{Epoch: s.Epoch, Hosts: map[Key]Counters{}}
	for key, c := range s.Hosts {
		if c.ConnectFails+c.Timeouts > 0 && !ignored(key.Cluster) {
			found.Hosts[key] = c
		}
	}
	return found
}

// of returns the counters of an endpoint. Those of a cluster without a healthy one are the sums of
// its endpoints.
func (s Snapshot) of(key Key) Counters {
	if key.Address != "" {
		return s.Hosts[key]
	}
	var sum Counters
	for other, c := range s.Hosts {
		if other.Cluster == key.Cluster {
			sum.Requests += c.Requests
			sum.Success += c.Success
			sum.Connects += c.Connects
			sum.ConnectFails += c.ConnectFails
			sum.Connections += c.Connections
		}
	}
	return sum
}

// only returns the counters that are compared for an endpoint.
func (s Snapshot) only(key Key) *Snapshot {
	return &Snapshot{Epoch: s.Epoch, Hosts: map[Key]Counters{key: s.of(key)}}
}

// has reports whether an endpoint is configured. A cluster without endpoints is not listed.
func (s Snapshot) has(key Key) bool {
	_, ok := s.Hosts[key]
	return ok || key.Address == ""
}

func (s Snapshot) succeeded(key Key, base Snapshot) bool {
	return s.of(key).succeeded(base.Hosts[key])
}

// shown is the number of problems in the condition's sentence.
const shown = 5

// publish raises or clears the condition. Callers hold mu.
func (t *Tracker) publish() {
	all := t.problems()
	if len(all) == 0 {
		t.options.Board.Clear(ConditionFailing)
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
	t.options.Board.Raise(ConditionFailing, condition.Error, strings.Join(sentences, "; "))
}

// String describes the problem: host, address, cause, since when and how many.
func (p Problem) String() string {
	at := ""
	if p.Address != "" {
		at = " at " + p.Address
	}
	noun := "failures"
	if p.Requests == 1 {
		noun = "failure"
	}
	return fmt.Sprintf("backend %s%s fails: %s (%d %s since %s)", p.Host(), at, p.Cause, p.Requests,
		noun, p.Since.Format(time.DateTime))
}
