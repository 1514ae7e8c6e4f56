package agent

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// An epoch may become live without a reload, started with old values of keys that have been changed
// since. The reloader then applies the new values to it. An epoch of a reload gets them from that
// reload.
func TestReload_FollowsEpochsThatBecomeLiveWithoutReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		live, calls := "", []string(nil)
		r.changed = make(chan struct{})
		r.liveID = func() string { return live }
		record := func(call string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			calls = append(calls, call)
		}
		r.adjust = func() { record("adjust") }
		r.enact = func(won *prepared, _ func(string)) {
			record("enact " + won.loaded.Config.Envoy.LogLevel)
		}
		becomesLive := func(id string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			live = id
			close(r.changed)
			r.changed = make(chan struct{})
		}
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			if diff := cmp.Diff(want, calls); diff != "" {
				t.Errorf("%s: %s", when, diff)
			}
			calls = nil
		}
		becomesLive("a")
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		expect("start", "enact warning", "adjust")
		r.write(t, "[envoy]\nlog_level = \"info\"\n")
		r.ask(t, reload{reason: "levels", ifChanged: true})
		expect("reload", "enact info")
		becomesLive("b")
		expect("a restarted epoch is live", "adjust")

		release := r.holdEpochs()
		r.write(t, "[envoy]\nlog_level = \"debug\"\n")
		outcome := r.beginOf(t, &reload{reason: "requested"})
		synctest.Wait()
		becomesLive("c")
		expect("the requested epoch is live before its reload ends")
		release()
		<-outcome
		expect("the reload ends", "enact debug", "adjust")
	})
}
