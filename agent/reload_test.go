package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
)

func TestReloadDecidesWhatAChangeNeeds(t *testing.T) {
	r := newReloads(t)
	var starts []bool // prepared.first of each applied configuration
	enact := r.enact
	r.enact = func(won *prepared, step func(string)) {
		r.mu.Lock()
		starts = append(starts, won.first)
		r.mu.Unlock()
		enact(won, step)
	}
	r.run(t)
	if got := r.ask(t, reload{reason: "start", first: true,
		ifChanged: true}); got.Outcome != api.OutcomeRestarted || *got.Epoch != 0 {
		t.Fatalf("start: %+v", got)
	}
	for _, c := range []struct {
		name, toml string
		ifChanged  bool
		outcome    api.ReloadOutcome
		epoch      int
		pending    string
		reason     string
	}{
		{"a file that says the same", "# nothing\n", true, api.OutcomeUnchanged, 0, "", ""},
		{"on request always", "", false, api.OutcomeRestarted, 1, "", ""},
		{"a live key", "[log]\nlevel = \"debug\"\n", true, api.OutcomeApplied, 1, "", ""},
		{"an epoch key", "[envoy]\nconnect_timeout = \"3s\"\n", true,
			api.OutcomeRestarted, 2, "", ""},
		{"a start key", "[envoy]\nconnect_timeout = \"3s\"\n[bus]\nenabled = false\n", true,
			api.OutcomeUnchanged, 2, "bus.enabled", ""},
		{"a broken file", "[envoy]\nconnect_timeout = 3\n", true, api.OutcomeRefused, 2, "",
			"connect_timeout"},
		{"no bootstrap", "[node]\nnetwork = \"impossible\"\n", true, api.OutcomeRefused, 2, "",
			"no bootstrap"},
		{"back, on request if changed",
			"[reload]\non_request = \"if-changed\"\n[envoy]\nconnect_timeout = \"3s\"\n", false,
			api.OutcomeApplied, 2, "", ""},
	} {
		r.write(t, c.toml)
		got := r.ask(t, reload{reason: c.name, ifChanged: c.ifChanged})
		if got.Outcome != c.outcome || got.Epoch == nil || *got.Epoch != c.epoch ||
			strings.Join(got.KeysPendingRestart, " ") != c.pending ||
			!strings.Contains(strings.Join(got.Reasons, "\n"), c.reason) {
			t.Errorf("%s: %+v", c.name, got)
		}
		if got.StartedUnneededEpoch != (c.name == "on request always") {
			t.Errorf("%s: on request: %t", c.name, got.StartedUnneededEpoch)
		}
		if refused := len(r.board.Conditions()) > 0 &&
			r.board.Conditions()[0].Code == conditionRefused; refused != (c.outcome == api.OutcomeRefused) {
			t.Errorf("%s: conditions %+v", c.name, r.board.Conditions())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(starts) < 2 || !starts[0] || slices.Contains(starts[1:], true) {
		t.Errorf("the start is among %v", starts)
	}
}

func TestRefusedEpochKeepsTheConfigurationInForce(t *testing.T) {
	r := newReloads(t)
	r.run(t)
	r.ask(t, reload{reason: "start", first: true, ifChanged: true})
	r.fail = &epoch.AttemptError{Number: 1, Remaining: 0, Reasons: []string{"it does not get live"}}
	r.write(t, "[log]\nlevel = \"debug\"\n[envoy]\nconnect_timeout = \"3s\"\n")
	before := len(r.enacted)
	got := r.ask(t, reload{reason: "change", ifChanged: true})
	if got.Outcome != api.OutcomeRefused || got.Reasons[0] != "it does not get live" ||
		*got.Epoch != 0 {
		t.Errorf("%+v", got)
	}
	if r.InForce().Config.Log.Level != "info" || len(r.enacted) != before {
		t.Error("a [live] key of a refused change is in force")
	}
	r.fail = nil
	if got := r.ask(t,
		reload{reason: "again", ifChanged: true}); got.Outcome != api.OutcomeRestarted ||
		r.InForce().Config.Log.Level != "debug" {
		t.Errorf("the next attempt: %+v", got)
	}
}

// brokenWhileOneWaits starts a reload whose epoch waits until release is called, and then writes an
// invalid configuration file.
func brokenWhileOneWaits(
	t *testing.T,
) (r *reloads, waiting <-chan api.ReloadResult, release func()) {
	t.Helper()
	r = newReloads(t)
	r.run(t)
	r.ask(t, reload{reason: "start", first: true, ifChanged: true})
	release = r.holdEpochs()
	t.Cleanup(release)
	r.write(t, "[envoy]\nconnect_timeout = \"3s\"\n")
	waiting = r.begin(t, "waits")
	r.waits(t, 1) // the reload has read its configuration
	r.write(t, "[envoy]\nconnect_timeout = 3\n")
	return r, waiting, release
}

func TestBrokenChangeIsToldWhileAnEpochWaits(t *testing.T) {
	r, waiting, release := brokenWhileOneWaits(t)
	if got := r.ask(t,
		reload{reason: "broken", ifChanged: true}); got.Outcome != api.OutcomeRefused {
		t.Errorf("broken: %+v", got)
	}
	release()
	if got := <-waiting; got.Outcome != api.OutcomeRestarted ||
		r.InForce().Config.Envoy.ConnectTimeout != 3*time.Second {
		t.Errorf("the one that waited: %+v", got)
	}
}

func TestReloadEndsWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.do(ctx, &reload{reason: "late"}); !errors.Is(err, context.Canceled) {
			t.Errorf("a reload nobody serves: %v", err)
		}
	})
}

func TestChangeTakenBackWhileItsEpochWaitsIsNotTakenForUnchanged(t *testing.T) {
	r := newReloads(t)
	r.run(t)
	r.ask(t, reload{reason: "start", first: true, ifChanged: true})
	release := r.holdEpochs()
	defer release()
	var outcomes []<-chan api.ReloadResult
	for i, text := range []string{"[envoy]\nconnect_timeout = \"3s\"\n", "# as before\n"} {
		r.write(t, text)
		outcomes = append(outcomes, r.begin(t, "change"))
		// The second reload restores the configuration of the live epoch, but must request an
		// epoch: the epoch of the first reload is about to replace the live one.
		r.waits(t, i+1)
	}
	release()
	for _, outcome := range outcomes {
		<-outcome
	}
}

func TestOlderReloadDoesNotTakeBackANewerOne(t *testing.T) {
	r := newReloads(t)
	r.run(t)
	r.ask(t, reload{reason: "start", first: true, ifChanged: true})
	// Two reloads need the same epoch, and the supervisor answers the later one first.
	var releases []func()
	var outcomes []<-chan api.ReloadResult
	for i, level := range []string{"warn", "debug"} {
		releases = append(releases, r.holdEpochs())
		r.write(t, "[log]\nlevel = \""+level+"\"\n[envoy]\nconnect_timeout = \"3s\"\n")
		outcomes = append(outcomes, r.begin(t, level))
		r.waits(t, i+1)
	}
	releases[1]()
	<-outcomes[1]
	releases[0]()
	if older := <-outcomes[0]; !older.Superseded || len(older.Changes) != 2 ||
		older.Changes[1].New != `"debug"` {
		t.Errorf("the older one tells of what is not in force: %+v", older)
	}
	if got := r.InForce().Config.Log.Level; got != "debug" {
		t.Errorf("log.level %q is in force, which an older reload read; want debug", got)
	}
}

const slow = "[telemetry]\nstatsd_udp_address = \"statsd.test:8125\"\n[envoy]\n" +
	"connect_timeout = \"9s\"\n"
