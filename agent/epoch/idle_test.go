package epoch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/keeper"
)

// The intervals between two counts of connections are longer than the time for which the keeper
// returns the same measurement again.
func TestCounts_AreOfDifferentMeasurements(t *testing.T) {
	for name, pause := range map[string]time.Duration{"idleEvery": idleEvery,
		"countEvery": countEvery} {
		if pause <= keeper.MaxMeasurementAge {
			t.Errorf("%s is %v, but the keeper returns a measurement again for %v", name, pause,
				keeper.MaxMeasurementAge)
		}
	}
}

// applyIn applies a spec, which must be accepted. It returns how long this took and the progress
// messages.
func (h *harness) applyIn(hash string) (took time.Duration, told []string) {
	h.t.Helper()
	begun := time.Now()
	_, err := h.s.Apply(h.t.Context(),
		Request{Spec: specOf(hash), Reason: "test", OnWait: func(until time.Time, why string) {
			told = append(told, fmt.Sprintf("%s until %s", why, until.Sub(begun).Round(time.Second)))
		}})
	if err != nil {
		h.t.Fatalf("apply %q: %v", hash, err)
	}
	return time.Since(begun), told
}

func TestIdle_ReloadsDoNotWaitForAnEpochWithoutClients(t *testing.T) {
	onHost(t, func(h *harness) {
		for i := range 10 {
			if took, _ := h.applyIn(fmt.Sprint(i)); took > 1500*time.Millisecond {
				t.Errorf("reload %d took %s", i, took)
			}
		}
		h.expect("9 live, 8 draining")
		h.wait(10 * time.Second)
		h.expect("9 live")
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
		if log := h.log.String(); strings.Contains(log, "waiting for an older epoch") ||
			!strings.Contains(log, "no client was connected") {
			t.Error("the log says that something waited, or not why an epoch ended")
		}
	})
}

// While clients are connected to an older epoch, a reload waits and reports why. It continues once
// they have disconnected.
func TestIdle_ReloadWaitsForClients(t *testing.T) {
	for name, test := range map[string]struct {
		leave time.Duration // when the clients disconnect; 0: never
		least time.Duration
		most  time.Duration
	}{
		"they stay":  {0, 7500 * time.Millisecond, 8500 * time.Millisecond},
		"they leave": {4 * time.Second, 4 * time.Second, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				old := h.newest()
				h.do(func() { old.idle = 50 })
				h.must(specOf("b"))
				if test.leave > 0 {
					go func() {
						h.wait(test.leave)
						h.do(func() { old.idle = 0 })
					}()
				}
				took, told := h.applyIn("c")
				if took < test.least || took > test.most {
					t.Errorf("took %s, should take %s to %s", took, test.least, test.most)
				}
				if all := strings.Join(told, "\n"); !strings.Contains(all, "waiting for epoch 0 to finish draining, 50 client connections left until 8s") {
					t.Errorf("told:\n%s", all)
				}
				if log := h.log.String(); strings.Count(log, "waiting for an older epoch to finish draining") != 1 {
					t.Error("the log does not say once what is waited for")
				}
			})
		})
	}
}

// An epoch does not count as idle while it listens, because it may have connections that are not
// counted yet, nor while the keeper cannot count its connections.
func TestIdle_IsOnlyWhatIsKnownToBe(t *testing.T) {
	for name, unknown := range map[string]func(h *harness, old *fakeEnvoy){
		"it listens":      func(_ *harness, old *fakeEnvoy) { old.datagrams = true },
		"no measurements": func(h *harness, _ *fakeEnvoy) { h.w.unmeasured = true },
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				old := h.newest()
				h.must(specOf("b"))
				h.do(func() { unknown(h, old) })
				if took, _ := h.applyIn("c"); took < 7*time.Second {
					t.Errorf("took %s", took)
				}
				if log := h.log.String(); strings.Count(log, "waiting for an older epoch to finish draining") != 1 {
					t.Error("the log does not say once what is waited for")
				}
			})
		})
	}
}

// An idle epoch that does not exit when its child requests it is killed.
func TestIdle_EpochThatHangsIsKilled(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.must(specOf("b"))
		h.wait(time.Second)
		h.do(func() { old.stopped = true })
		h.applyIn("c")
		h.wait(2 * time.Second)
		h.expect("2 live, 1 draining")
		if old.exit == nil || old.exit.Signal != "SIGKILL" {
			t.Errorf("%+v", old.exit)
		}
		h.must(specOf("d"))
	})
}

// A reload that Envoy refuses while an idle epoch is left does not interrupt service, and the next
// reload does not wait for the idle epoch.
func TestIdle_RefusedReload(t *testing.T) {
	for name, bad := range map[string]behaviour{"before the handshake": {unparsed: true},
		"after it": {late: true}} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.w.behaviour["bad"] = bad
				h.must(specOf("a"))
				h.must(specOf("b"))
				h.refused(specOf("bad"))
				if took, _ := h.applyIn("c"); took > 1500*time.Millisecond {
					t.Errorf("took %s", took)
				}
				if h.outage() != 0 {
					t.Errorf("nobody served for %s", h.outage())
				}
			})
		})
	}
}

// After a restart, the agent determines that an adopted epoch is idle, so a reload need not wait
// for it.
func TestIdle_Adopted(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		h.leave()
		h.begin()
		if took, _ := h.applyIn("c"); took > 1500*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

// A request aborts exactly the draining epochs that it names.
func TestIdle_RequestAbortsTheDrainingEpochsThatItNames(t *testing.T) {
	for name, test := range map[string]struct {
		abort []int
		waits bool
	}{
		"the draining one": {[]int{0}, false}, "the live one, and none": {[]int{1, 7}, true},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				old := h.newest()
				h.do(func() { old.idle, h.w.allowed = 50, !test.waits })
				h.must(specOf("b"))
				h.wait(2 * time.Second)
				begun := time.Now()
				_, err := h.s.Apply(h.t.Context(),
					Request{Spec: specOf("c"), Reason: "test", AbortEpochs: test.abort})
				if took := time.Since(begun); err != nil || (took > 4*time.Second) != test.waits {
					t.Errorf("took %s: %v", took, err)
				}
				if h.outage() != 0 {
					t.Errorf("nobody served for %s", h.outage())
				}
			})
		})
	}
}

// A request whose configuration is refused aborts none of the draining epochs that it names. A
// later request can still abort them.
func TestIdle_RefusedRequestAbortsNothing(t *testing.T) {
	for name, change := range map[string]func(h *harness, bad *Spec){
		"by validation": func(h *harness, _ *Spec) { h.w.behaviour["bad"] = behaviour{invalid: true} },
		"without a bootstrap": func(_ *harness, bad *Spec) {
			bad.Bootstrap = func(LaunchInput) ([]byte, error) { return nil, errors.New("template: line 3") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				old := h.newest()
				h.do(func() { old.idle = 50 })
				h.must(specOf("b"))
				h.wait(2 * time.Second)
				bad := specOf("bad")
				change(h, bad)
				_, err := h.s.Apply(h.t.Context(), Request{Spec: bad, Reason: "test",
					AbortEpochs: []int{0}})
				if refused, ok := errors.AsType[*AttemptError](err); !ok || refused.Remaining != 1 {
					t.Errorf("%v", err)
				}
				h.do(func() {
					if old.exit != nil {
						t.Errorf("the epoch that drains was ended: %+v", old.exit)
					}
					h.w.allowed = true
				})
				begun := time.Now()
				if _, err := h.s.Apply(h.t.Context(), Request{Spec: specOf("c"), Reason: "test",
					AbortEpochs: []int{0}}); err != nil || time.Since(begun) > 4*time.Second {
					t.Errorf("took %s: %v", time.Since(begun), err)
				}
				if h.outage() != 0 {
					t.Errorf("nobody served for %s", h.outage())
				}
			})
		})
	}
}

// The wait for an aborted epoch to exit is bounded.
func TestIdle_AbortedEpochThatDoesNotExit(t *testing.T) {
	for name, test := range map[string]struct {
		do    func(m *machine)
		cause error
	}{
		"for long": {func(m *machine) { m.now = m.now.Add(killTimeout + 1) }, errLingers},
		"an abort": {func(m *machine) { m.abort(errAborted) }, errAborted},
	} {
		t.Run(name, func(t *testing.T) {
			was := host("0 draining, 1 live", starts(preparing))
			was.attempt.abort, was.attempt.calls = []int{0}, []call{{id: 7}}
			now, actions := next(was, event{noon, prepared{id: "next"}})
			if now.attempt == nil || now.attempt.stage != clearing {
				t.Fatalf("%+v", now.attempt)
			}
			for _, a := range actions {
				if _, ok := a.(launch); ok {
					t.Error("launched beside an epoch that has not exited")
				}
			}
			m := &machine{state: now.clone(), now: noon}
			test.do(m)
			m.reconcile()
			if m.attempt != nil || !slices.ContainsFunc(m.actions, func(a action) bool {
				r, ok := a.(reply)
				return ok && r.call == 7 && errors.Is(r.answer.err, test.cause)
			}) {
				t.Errorf("%+v: %+v", m.attempt, m.actions)
			}
		})
	}
}
