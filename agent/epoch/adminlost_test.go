package epoch

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/condition"
)

// loses lists failures of a new epoch, by name, because of which its parent loses its admin
// interface.
var loses = map[string]behaviour{"port in use": {late: true}, "never live": {never: true}}

// adminIsBack checks that the live epoch's admin interface answers. It checks nothing while no
// epoch is live, or while the spec that worked last is only known from a note.
func (h *harness) adminIsBack() {
	h.t.Helper()
	synctest.Wait()
	known := false
	h.inspect(func(s *state) {
		known = s.lastGood != nil && s.lastGood.adopted == nil && s.live() != nil
	})
	if !known {
		return
	}
	live, admin, _ := h.s.Live()
	if _, err := admin.State(h.t.Context()); err != nil || live.AdminLost ||
		slices.Contains(h.conditions(), conditionAdminLost) {
		h.t.Errorf("epoch %d has no admin interface (%v); conditions: %v", live.Number, err,
			h.conditions())
	}
}

func TestRepair_BringsBackTheAdminInterface(t *testing.T) {
	for name, bad := range loses {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.w.behaviour["bad"] = bad
				// each round after the first waits until the epoch that the previous round replaced
				// has exited
				for round := range 3 {
					refused := h.refused(specOf("bad"))
					if refused.Remaining != round || refused.Number != round+1 {
						t.Errorf("refused: %+v", refused)
					}
					h.wait(200 * time.Millisecond)
					live, _, _ := h.s.Live()
					if live.SpecDigest != "a" || live.Number != round+1 ||
						live.Mode != HotRestart ||
						!strings.Contains(live.Reason, "brings back the admin interface") {
						t.Errorf("live: %+v", live)
					}
					h.adminIsBack()
				}
				h.wait(10 * time.Minute)
				h.expect("3 live") // no further epoch was started
				if got := h.must(specOf("b")); got != (Result{Epoch: 4, Previous: 3,
					Mode: HotRestart}) {
					t.Errorf("the next: %+v", got)
				}
				if h.outage() != 0 || len(h.conditions()) != 0 {
					t.Errorf("nobody served for %s; conditions %v", h.outage(), h.conditions())
				}
				raised := 0
				for _, e := range h.board.Events(0) {
					if e.Kind == condition.KindConditionRaised && e.Fields["code"] == conditionAdminLost {
						raised++
					}
				}
				// the exact number is unknown: condition.Registry publishes at most three such
				// events a minute
				if raised == 0 {
					t.Error("no event that the admin interface was lost")
				}
			})
		})
	}
}

func TestRepair_IsReplacedByAWaitingRequest(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.behaviour["bad"] = behaviour{never: true}
		first, second := make(chan error, 1), make(chan Result, 1)
		go func() { _, err := h.apply(specOf("bad")); first <- err }()
		h.wait(time.Second)
		go func() { result, _ := h.apply(specOf("b")); second <- result }()
		if err := <-first; err == nil {
			t.Error("it was not refused")
		}
		if got := <-second; got != (Result{Epoch: 1, Previous: 0, Mode: HotRestart}) {
			t.Errorf("what waited: %+v", got)
		}
		h.wait(time.Minute)
		h.expect("1 live")
		h.adminIsBack()
	})
}

func TestRepair_IsRepeatedAfterAMinute(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.behaviour["bad"] = behaviour{late: true}
		// the spec of the live epoch now fails to start, too
		h.do(func() { h.w.behaviour["a"] = behaviour{late: true} })
		h.refused(specOf("bad"))
		starts := func() (n int) {
			h.do(func() { n = len(h.w.all) })
			return n
		}
		before := starts()
		h.wait(5*repairInterval + time.Second)
		if tries := starts() - before; tries < 5 || tries > 6 {
			t.Errorf("%d tries in five intervals", tries)
		}
		h.expect("0 live")
		if got := h.conditions(); !slices.Equal(got, []string{conditionAdminLost}) {
			t.Errorf("conditions: %v", got)
		}
		h.do(func() { delete(h.w.behaviour, "a") })
		h.wait(repairInterval)
		h.expect("1 live, 0 draining")
		h.adminIsBack()
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

// An agent adopts an epoch that has lost its admin interface. It replaces the epoch only once Apply
// has provided the configuration.
func TestRepair_OfAnAdoptedEpochWaitsForItsConfiguration(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.behaviour["bad"] = behaviour{late: true}
		h.do(func() { h.w.behaviour["a"] = behaviour{late: true} })
		h.refused(specOf("bad"))
		h.wait(time.Second)
		h.leave()
		h.do(func() { delete(h.w.behaviour, "a") })
		h.begin()
		h.wait(time.Second)
		h.expect("0 live")
		result, err := h.s.Apply(h.t.Context(), Request{Spec: specOf("a"), IfChanged: true})
		if err != nil || result.Mode != NoNewEpoch {
			t.Errorf("%+v, %v", result, err)
		}
		h.wait(time.Second)
		h.expect("1 live, 0 draining")
		h.adminIsBack()
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

// Whenever the live epoch's admin interface fails because another epoch took it over, its record
// says so: it is handing over, or AdminLost is set.
func TestEpoch_SaysWhyItsAdminIsClosed(t *testing.T) {
	for name, bad := range loses {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.w.behaviour["bad"] = bad
				go func() { _, _ = h.apply(specOf("bad")) }()
				for until := time.Now().Add(30 * time.Second); time.Now().Before(until); {
					changed := h.s.Changed()
					live, admin, _ := h.s.Live()
					if _, err := admin.State(h.t.Context()); err != nil {
						if now, _, _ := h.s.Live(); now.ID == live.ID && !now.AdminLost && now.State != StateHandingOver {
							t.Errorf("%s: %v, and %+v", time.Now().Format("05.000"), err, now)
						}
					}
					select {
					case <-changed:
					case <-time.After(time.Millisecond):
					}
				}
				h.expect("1 live")
			})
		})
	}
}
