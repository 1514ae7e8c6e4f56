package agent

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

func TestAResolverThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		r.hangs = make(chan struct{})
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		r.write(t, slow)
		waiting := r.begin(t, "slow")
		synctest.Wait()
		if err := r.Ping(t.Context()); err != nil {
			t.Errorf("the loop does not turn: %v", err)
		}
		if got := r.Phase(); got != "reloading (slow): looking up statsd.test:8125" {
			t.Errorf("what is waited for: %q", got)
		}
		r.write(t, "[log]\nlevel = \"debug\"\n[envoy]\nconnect_timeout = \"3s\"\n")
		if got := r.ask(t, reload{reason: "later",
			ifChanged: true}); got.Outcome != api.OutcomeRestarted || *got.Epoch != 1 ||
			got.Superseded {
			t.Errorf("the later one: %+v", got)
		}
		close(r.hangs)
		got := <-waiting // a newer configuration is on disk and in force
		if !got.Superseded || *got.Epoch != 1 || len(got.Changes) != 0 ||
			r.InForce().Config.Envoy.ConnectTimeout != 3*time.Second {
			t.Errorf("the one that was late: %+v; in force: %v", got,
				r.InForce().Config.Envoy.ConnectTimeout)
		}
		if got := r.Phase(); got != "" {
			t.Errorf("still %q", got)
		}
	})
}

// A reload that a file change triggers is published as an event only once it has an effect.
func TestAChangeWithoutEffectIsNotToldAsAReload(t *testing.T) {
	const epochKey, liveKey, broken = "[envoy]\nconnect_timeout = \"3s\"\n",
		"[log]\nlevel = \"debug\"\n" + "[envoy]\nconnect_timeout = \"3s\"\n",
		"[envoy]\nconnect_timeout = 3\n"
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		r.hangs = make(chan struct{})
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		events, cancel := r.board.Watch(64)
		defer cancel()
		for _, step := range []struct {
			name, toml  string
			asked       bool
			outcome     api.ReloadOutcome
			read, epoch bool // start is published while it reads, and while its epoch starts
		}{
			{"nothing", "# nothing\n", false, api.OutcomeUnchanged, false, false},
			{"nothing, asked for", "# still nothing\n", true, api.OutcomeUnchanged, true, false},
			{"an epoch", epochKey, false, api.OutcomeRestarted, false, true},
			{"a live key", liveKey, false, api.OutcomeApplied, false, false},
			{"broken", broken, false, api.OutcomeRefused, false, false},
			{"back", liveKey, false, api.OutcomeUnchanged, false, false},
			{"a start key", liveKey + "[bus]\nenabled = false\n", false, api.OutcomeUnchanged,
				false, false},
			{"a start key, as before", liveKey + "[bus]\nenabled = false\n# nothing\n", false,
				api.OutcomeUnchanged, false, false},
		} {
			r.write(t, step.toml)
			request := &reload{reason: step.name, ifChanged: true}
			if !step.asked {
				request.files = []string{r.file}
			}
			gate, release := make(chan struct{}), r.holdEpochs()
			load := r.load
			r.load = func() (*config.Loaded, error) { <-gate; return load() }
			outcome := make(chan api.ReloadResult, 1)
			go func() {
				result, _ := r.do(t.Context(), request)
				outcome <- result
			}()
			synctest.Wait()
			if _, _, busy := r.Summary(); busy != step.read || r.Phase() == "" {
				t.Errorf("%s: while it is read: told %t, %q", step.name, busy, r.Phase())
			}
			close(gate)
			synctest.Wait()
			if _, _, busy := r.Summary(); busy != step.epoch {
				t.Errorf("%s: once it is read: told %t, %q", step.name, busy, r.Phase())
			}
			release()
			if got := <-outcome; got.Outcome != step.outcome {
				t.Errorf("%s: %+v", step.name, got)
			}
			synctest.Wait()
			var told, want []string
			for len(events) > 0 {
				switch event := <-events; event.Kind {
				case condition.KindReloadStarted, condition.KindReloadRefused,
					condition.KindReloadFinished:
					told = append(told, event.Kind+" "+event.Fields["id"])
				}
			}
			id := strconv.FormatUint(request.id, 10)
			if step.asked || step.outcome != api.OutcomeUnchanged || step.name == "a start key" {
				want = append(want, condition.KindReloadStarted+" "+id)
				if step.outcome == api.OutcomeRefused {
					want = append(want, condition.KindReloadRefused+" "+id)
				}
				want = append(want, condition.KindReloadFinished+" "+id)
			}
			if diff := cmp.Diff(want, told); diff != "" {
				t.Errorf("%s: %s", step.name, diff)
			}
			r.load = load
		}
	})
}

func TestAResolverThatNeverAnswersIsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		r.write(t, slow)
		if got := r.ask(t,
			reload{reason: "slow", ifChanged: true}); got.Outcome != api.OutcomeRefused ||
			!strings.Contains(got.Reasons[0], "deadline") {
			t.Errorf("%+v", got)
		}
	})
}

func TestARefusalStandsThoughAnOlderReloadIsPutInForce(t *testing.T) {
	r, waiting, release := brokenWhileOneWaits(t)
	r.ask(t, reload{reason: "broken", ifChanged: true})
	release()
	if got := <-waiting; got.Outcome != api.OutcomeRestarted {
		t.Errorf("%+v", got)
	}
	if standing := r.board.Conditions(); len(standing) != 1 ||
		standing[0].Code != conditionRefused {
		t.Errorf("what is on disk is not told as refused any more: %+v", standing)
	}
}

func TestReloadsReachTheSupervisorInOrder(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			r := newReloads(t)
			gates := map[string]chan struct{}{"1s": make(chan struct{}), "2s": make(chan struct{})}
			build := r.build
			r.build = func(
				ctx context.Context, loaded *config.Loaded, to listener,
			) (*wanted, error) {
				<-gates[loaded.Config.Envoy.ConnectTimeout.String()]
				return build(ctx, loaded, to)
			}
			r.run(t)
			var outcomes []<-chan api.ReloadResult
			for _, timeout := range []string{"1s", "2s"} {
				r.write(t, "[envoy]\nconnect_timeout = \""+timeout+"\"\n")
				outcomes = append(outcomes, r.begin(t, timeout))
				synctest.Wait() // the configuration has been read
			}
			release := make(chan struct{})
			r.posted <- func() { <-release }
			for _, timeout := range []string{"1s", "2s"} {
				close(gates[timeout])
				synctest.Wait() // the request is prepared and waits for the goroutine of Run
			}
			close(release)
			for _, outcome := range outcomes {
				<-outcome
			}
			if diff := cmp.Diff([]string{"1s", "2s"}, r.wishes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A file change and a request of a user lead to two reloads of the same content. In whatever order
// they are prepared, both get the same epoch, and neither is reported as replaced by a newer
// configuration.
func TestTheSameContentIsOneEpochAndNotNewer(t *testing.T) {
	for name, watchFirst := range map[string]bool{"the request is decided first": false,
		"the watch overtakes it": true} {
		// live means that the first epoch is live before the other reload is decided.
		for _, live := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newReloads(t)
					r.run(t)
					r.ask(t, reload{reason: "start", first: true, ifChanged: true})
					gates := []chan struct{}{make(chan struct{}), make(chan struct{})}
					reads := 0
					r.load = func() (*config.Loaded, error) {
						r.mu.Lock()
						gate := gates[reads]
						reads++
						r.mu.Unlock()
						<-gate
						return r.read()
					}
					r.write(t, "[envoy]\nconnect_timeout = \"3s\"\n")
					first := r.holdEpochs()
					defer first()
					if live {
						first()
					}
					var outcomes []<-chan api.ReloadResult
					for _, request := range []*reload{{reason: "asked for"},
						{reason: "changed", ifChanged: true, files: []string{r.file}}} {
						outcomes = append(outcomes, r.beginOf(t, request))
						synctest.Wait()
					}
					if watchFirst {
						gates[0], gates[1] = gates[1], gates[0]
					}
					close(gates[0])
					synctest.Wait()
					second := r.holdEpochs()
					defer second()
					close(gates[1])
					synctest.Wait()
					first() // the supervisor answers requests in order
					synctest.Wait()
					second()
					for i, outcome := range outcomes {
						if got := <-outcome; got.Superseded || *got.Epoch != 1 {
							t.Errorf("request %d: %+v", i, got)
						}
					}
					if r.applied != 2 {
						t.Errorf("%d epochs, want 2", r.applied)
					}
				})
			})
		}
	}
}

// A request of a user gets a new epoch even if a later reload, which needs no epoch, is prepared
// first.
func TestARequestThatIsOvertakenByOneWithoutEffectHasItsEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		gate, load := make(chan struct{}), r.load
		r.load = func() (*config.Loaded, error) { <-gate; return load() }
		asked := r.beginOf(t, &reload{reason: "asked for"})
		synctest.Wait()
		r.load = load
		if got := r.ask(t, reload{reason: "changed", ifChanged: true,
			files: []string{r.file}}); got.Outcome != api.OutcomeUnchanged {
			t.Errorf("the watch: %+v", got)
		}
		close(gate)
		if got := <-asked; got.Outcome != api.OutcomeRestarted || *got.Epoch != 1 ||
			got.Superseded {
			t.Errorf("the request: %+v", got)
		}
	})
}
