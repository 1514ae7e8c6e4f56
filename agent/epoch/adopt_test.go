package epoch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/keeper"
)

// unchanged applies a spec as a restarted agent does: it starts no epoch if the live one has this
// spec.
func (h *harness) unchanged(spec *Spec) Result {
	h.t.Helper()
	result, err := h.s.Apply(h.t.Context(), Request{Spec: spec, Reason: "start", IfChanged: true})
	if err != nil {
		h.t.Fatalf("apply %q: %v", spec.Digest, err)
	}
	return result
}

func TestAdoption(t *testing.T) {
	for name, away := range map[string]time.Duration{"at once": 0,
		"within the overlap": 5 * time.Second, "after it": time.Minute} {
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
				if live, admin, ok := h.s.Live(); !ok || live.Number != 1 ||
					live.SpecDigest != "b" || admin == nil {
					t.Errorf("live: %+v", live)
				}
				if got := h.unchanged(specOf("b")); got.Mode != NoNewEpoch {
					t.Errorf("%+v", got)
				}
				if got := h.must(specOf("c")); got.Epoch != 2 || got.Mode != HotRestart {
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
			spec.ValidateCommand = nil
			go func() { _, _ = h.apply(spec) }()
			h.wait(at * time.Millisecond)
			h.leave()
			h.wait(3 * time.Second)
			h.begin()
			h.wait(time.Second)
			if live, _, _ := h.s.Live(); live.Number != 1 || live.SpecDigest != "b" {
				t.Errorf("agent gone %dms after the request: live is %+v", at, live)
			}
			h.wait(10 * time.Second)
			h.unchanged(spec)
			h.expect("1 live")
			if got := h.must(specOf("c")); got.Epoch != 2 || got.Mode != HotRestart ||
				h.outage() != 0 {
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
				spec.ValidateCommand = nil
				go func() { _, _ = h.apply(spec) }()
				h.wait(10 * time.Millisecond)
				h.leave()
				h.wait(time.Second)
				h.begin()
				done := make(chan Result, 1)
				go func() { done <- h.unchanged(specOf("a")) }()
				h.wait(25 * time.Second)
				// The failed epoch may have closed the old epoch's listeners before it died, so the
				// old epoch is replaced.
				if got := <-done; got.Mode != NoNewEpoch {
					t.Errorf("%+v", got)
				}
				h.wait(20 * time.Second)
				// the old epoch was replaced again, because the failed epoch had taken over the old
				// epoch's admin interface
				h.expect("1 live")
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
		victims  []int // indexes of the Envoys that die, oldest first
		at, want string
	}{
		"the only one":             {victims: []int{0}, want: "0 live"},
		"the newest in an overlap": {overlap: true, victims: []int{1}, want: "1 live, 0 draining"},
		"the oldest in an overlap": {overlap: true, victims: []int{0}, want: "1 live"},
		// the newest epoch is started again as number 1, because its bootstrap file contains that
		// number
		"both in an overlap": {overlap: true, victims: []int{0, 1}, want: "1 live"},
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
					if got.Mode != NoNewEpoch || h.outage() != 0 {
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

func TestAdoption_EndsForeignProcesses(t *testing.T) {
	onHost(t, func(h *harness) {
		h.leave()
		h.do(func() {
			h.w.start(keeper.StartSpec{ID: "x", Args: []string{"x", "1s", "1s"},
				Note: []byte("?")})
		})
		h.begin()
		synctest.Wait()
		if n := len(h.alive()); n != 0 {
			t.Errorf("%d foreign processes left", n)
		}
		h.must(specOf("a"))
	})
}

func TestStop_InterruptedIsFollowedByANewEpoch(t *testing.T) {
	for name, after := range map[string]time.Duration{"before its listeners close": time.Second,
		"after": 5500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				first := h.newest()
				h.do(func() { first.requests = 1 })
				s := h.s
				go func() { _ = s.Stop(context.Background(), h.config, false) }()
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
