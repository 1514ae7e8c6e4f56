package epoch

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
)

// unchanged asks as an agent does that has just started.
func (h *harness) unchanged(spec *Spec) Result {
	h.t.Helper()
	result, err := h.s.Apply(h.t.Context(), Request{Spec: spec, Reason: "start", IfChanged: true})
	if err != nil {
		h.t.Fatalf("apply %q: %v", spec.Hash, err)
	}
	return result
}

func TestAdoption(t *testing.T) {
	for name, away := range map[string]time.Duration{"at once": 0, "within the overlap": 5 * time.Second, "after it": time.Minute} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.must(specOf("b"))
				h.wait(time.Second)
				before := h.s.Epochs()
				h.leave()
				h.wait(away)
				h.begin()
				if h.w.measured != 0 {
					t.Errorf("adoption waited for %d measurements", h.w.measured)
				}
				if away == 0 {
					if diff := cmp.Diff(before, h.s.Epochs()); diff != "" {
						t.Errorf("adopted, and changed: %s", diff)
					}
				}
				if live, admin, ok := h.s.Live(); !ok || live.Number != 1 || live.Hash != "b" || admin == nil {
					t.Errorf("live: %+v", live)
				}
				if got := h.unchanged(specOf("b")); got.Mode != Unchanged {
					t.Errorf("%+v", got)
				}
				if got := h.must(specOf("c")); got.Epoch != 2 || got.Mode != Hot {
					t.Errorf("%+v", got)
				}
				h.wait(20 * time.Second)
				h.expect("2 live")
				if got := h.files(); !cmp.Equal(got, []string{"envoy-rev2.json"}) {
					t.Errorf("files: %v", got)
				}
				if h.outage() != 0 {
					t.Errorf("nobody served for %s", h.outage())
				}
			})
		})
	}
}

func TestAdoptionDuringAStart(t *testing.T) {
	for _, at := range []time.Duration{1, 10, 20, 45, 50, 55, 60, 100} {
		onHost(t, func(h *harness) {
			h.must(specOf("a"))
			spec := specOf("b")
			spec.Validation = nil
			go func() { _, _ = h.apply(spec) }()
			h.wait(at * time.Millisecond)
			h.leave()
			h.wait(3 * time.Second)
			h.begin()
			h.wait(time.Second)
			if live, _, _ := h.s.Live(); live.Number != 1 || live.Hash != "b" {
				t.Errorf("agent gone %dms after the request: live is %+v", at, live)
			}
			h.wait(10 * time.Second)
			h.unchanged(spec)
			h.expect("1 live")
			if got := h.must(specOf("c")); got.Epoch != 2 || got.Mode != Hot || h.outage() != 0 {
				t.Errorf("%+v; nobody served for %s", got, h.outage())
			}
		})
	}
}

func TestAdoptedStartThatFails(t *testing.T) {
	for name, b := range map[string]behaviour{"exits": {late: true}, "is never live": {never: true}} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.w.behaviour["bad"] = b
				spec := specOf("bad")
				spec.Validation = nil
				go func() { _, _ = h.apply(spec) }()
				h.wait(10 * time.Millisecond)
				h.leave()
				h.wait(time.Second)
				h.begin()
				done := make(chan Result, 1)
				go func() { done <- h.unchanged(specOf("a")) }()
				h.wait(25 * time.Second)
				// If it died while nobody looked it may have closed the old one's listeners: that
				// is replaced to be sure.
				if got := <-done; got.Mode != Unchanged {
					t.Errorf("%+v", got)
				}
				h.wait(20 * time.Second)
				h.expect("1 live") // the other one cost it its admin interface
				h.adminIsBack()
				h.must(specOf("b"))
				if h.outage() != 0 {
					t.Errorf("nobody served for %s", h.outage())
				}
			})
		})
	}
}

func TestEnvoyDiedWhileNoAgentWasThere(t *testing.T) {
	for name, test := range map[string]struct {
		overlap  bool
		victims  []int // by age
		at, want string
	}{
		"the only one":             {victims: []int{0}, want: "0 live"},
		"the newest in an overlap": {overlap: true, victims: []int{1}, want: "1 live, 0 draining"},
		"the oldest in an overlap": {overlap: true, victims: []int{0}, want: "1 live"},
		"both in an overlap":       {overlap: true, victims: []int{0, 1}, want: "1 live"}, // as number 1: its file names it
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				if test.overlap {
					h.must(specOf("b"))
				}
				h.leave()
				alive := h.alive()
				for _, v := range test.victims {
					h.kill(alive[v], "SIGKILL")
				}
				h.wait(time.Second)
				h.begin()
				spec := specOf(map[bool]string{false: "a", true: "b"}[test.overlap])
				got := h.unchanged(spec)
				h.wait(500 * time.Millisecond)
				h.expect(test.want)
				if len(test.victims) == 1 && test.victims[0] == 0 && test.overlap {
					if got.Mode != Unchanged || h.outage() != 0 {
						t.Errorf("%+v; nobody served for %s", got, h.outage())
					}
				} else if h.outage() > 1200*time.Millisecond {
					t.Errorf("nobody served for %s after the agent was back", h.outage()-time.Second)
				}
				h.wait(20 * time.Second)
				h.must(specOf("d"))
			})
		})
	}
}

func TestAdoptionOfADrainSideBySide(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(version("b", "12.1"))
		old := h.alive()[0]
		h.do(func() { old.tunnels = 1 })
		h.wait(time.Second)
		h.leave()
		h.wait(time.Second)
		h.begin()
		h.wait(5500 * time.Millisecond)
		h.expect("1 live, 0 draining")
		h.wait(time.Second)
		h.expect("1 live")
	})
}

func TestKeeperDies(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		h.w.die()
		h.wait(100 * time.Millisecond)
		if got := h.conditions(); !slices.Contains(got, conditionKeeper) {
			t.Errorf("conditions: %v", got)
		}
		waiting := make(chan Result, 1)
		go func() { waiting <- h.must(specOf("c")) }()
		h.wait(100 * time.Millisecond)
		if err := h.s.SetKeeper(h.t.Context(), h.w.connect()); err != nil {
			t.Fatal(err)
		}
		h.wait(100 * time.Millisecond)
		if h.outage() > 300*time.Millisecond {
			t.Errorf("nobody served for %s", h.outage())
		}
		if got := <-waiting; got.Epoch != 1 || got.Mode != Hot {
			t.Errorf("what waited: %+v", got)
		}
		if got := h.conditions(); len(got) != 0 {
			t.Errorf("conditions: %v", got)
		}
	})
}

// A keeper that comes back in time is no error, unless Envoy has ended with it.
func TestKeeperLost_BecomesAnError(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.lose()
		for _, step := range []struct {
			wait time.Duration
			want condition.Severity
		}{{keeperPatience - 100*time.Millisecond, condition.Info}, {200 * time.Millisecond, condition.Error}} {
			h.wait(step.wait)
			if standing := h.board.Conditions(); len(standing) != 1 || standing[0].Code != conditionKeeper || standing[0].Severity != step.want {
				t.Errorf("want %s: %+v", step.want, standing)
			}
		}
		if err := h.s.SetKeeper(h.t.Context(), h.w.connect()); err != nil {
			t.Fatal(err)
		}
		h.wait(100 * time.Millisecond)
		if standing := h.board.Conditions(); len(standing) != 0 {
			t.Errorf("conditions: %+v", standing)
		}
	})
}

func TestKeeperDies_EnvoyIsNotLive(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		h.w.die()
		h.wait(2 * missedPause)
		if live, _, ok := h.s.Live(); ok {
			t.Errorf("epoch %d is live", live.Number)
		}
		for _, standing := range h.board.Conditions() {
			if standing.Severity != condition.Error {
				t.Errorf("%+v", standing)
			}
		}
		if got := h.conditions(); !slices.Contains(got, conditionKeeper) || !slices.Contains(got, conditionDown) {
			t.Errorf("conditions: %v", got)
		}
		if err := h.s.SetKeeper(h.t.Context(), h.w.connect()); err != nil {
			t.Fatal(err)
		}
		h.wait(time.Second)
		h.expect("0 live")
		if got := h.conditions(); len(got) != 0 {
			t.Errorf("conditions: %v", got)
		}
		if said := h.log.String(); strings.Contains(said, "did not forget") {
			t.Errorf("the new keeper is asked to forget what it never knew: %s", said)
		}
	})
}

// An Envoy that ends while its keeper replaces itself is listed by it as exited, and counts once.
func TestKeeperReplacesItself_EnvoyEndsMeanwhile(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.lose()
		h.kill(h.newest(), "SIGKILL")
		h.wait(2 * missedPause)
		if err := h.s.SetKeeper(h.t.Context(), h.w.connect()); err != nil {
			t.Fatal(err)
		}
		h.wait(time.Second)
		h.expect("0 live")
		exited := slices.DeleteFunc(h.s.Epochs(), func(e Epoch) bool { return e.State != Exited })
		if got := h.conditions(); len(got) != 0 || len(exited) != 1 {
			t.Errorf("conditions: %v; exited: %+v", got, exited)
		}
	})
}

func TestKeeperReplacesItself(t *testing.T) {
	for _, starting := range []bool{false, true} {
		onHost(t, func(h *harness) {
			h.must(specOf("a"))
			done := make(chan error, 1)
			if starting {
				h.w.behaviour["b"] = behaviour{slow: time.Second}
				spec := specOf("b")
				spec.Validation = nil
				go func() { _, err := h.apply(spec); done <- err }()
				h.wait(20 * time.Millisecond)
			}
			h.w.lose()
			h.wait(100 * time.Millisecond)
			if err := h.s.SetKeeper(h.t.Context(), h.w.connect()); err != nil {
				t.Fatal(err)
			}
			if starting {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			h.wait(time.Minute)
			if live, _, _ := h.s.Live(); starting != (live.Hash == "b") || h.outage() != 0 {
				t.Errorf("live: %+v; nobody served for %s", live, h.outage())
			}
			h.must(specOf("c"))
		})
	}
}

func TestAdoption_EndsForeignProcesses(t *testing.T) {
	onHost(t, func(h *harness) {
		h.leave()
		h.do(func() {
			h.w.start(StartSpec{ID: "x", Command: Command{Args: []string{"x", "1s", "1s"}}, Note: []byte("?")})
		})
		h.begin()
		synctest.Wait()
		if n := len(h.alive()); n != 0 {
			t.Errorf("%d foreign processes left", n)
		}
		h.must(specOf("a"))
	})
}

func TestStop_WhileTheKeeperReplacesItself(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		e := h.newest()
		h.do(func() { e.requests = 1 })
		h.w.lose()
		h.wait(100 * time.Millisecond)
		go func() {
			h.wait(2 * time.Second)
			if err := h.s.SetKeeper(h.t.Context(), h.w.connect()); err != nil {
				t.Error(err)
			}
			h.wait(5 * time.Second)
			h.do(func() { e.requests = 0 })
		}()
		if took := h.stopIn(stopDefaults); took < 7*time.Second || took > 9*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestStop_InterruptedIsFollowedByANewEpoch(t *testing.T) {
	for name, after := range map[string]time.Duration{"before its listeners close": time.Second, "after": 5500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				first := h.newest()
				h.do(func() { first.requests = 1 })
				s := h.s
				go func() { _ = s.Stop(context.Background(), stopDefaults) }()
				h.wait(after)
				h.leave()
				h.begin()
				if _, err := h.s.Apply(h.t.Context(), Request{Spec: specOf("a"), Reason: "start", IfChanged: true}); err != nil {
					t.Fatal(err)
				}
				h.wait(time.Second)
				h.expect("1 live, 0 draining")
				if listening, unhealthy := h.state(h.newest()); !listening || unhealthy {
					t.Errorf("listening %t, unhealthy %t", listening, unhealthy)
				}
			})
		})
	}
}
