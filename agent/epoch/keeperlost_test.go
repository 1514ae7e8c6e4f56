package epoch

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
)

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
		if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
			t.Fatal(err)
		}
		h.wait(100 * time.Millisecond)
		if h.outage() > 300*time.Millisecond {
			t.Errorf("nobody served for %s", h.outage())
		}
		if got := <-waiting; got.Epoch != 1 || got.Mode != HotRestart {
			t.Errorf("what waited: %+v", got)
		}
		if got := h.conditions(); len(got) != 0 {
			t.Errorf("conditions: %v", got)
		}
	})
}

// While no keeper is connected, a condition is raised, which becomes an error after keeperPatience.
// It is cleared when the next keeper connects, unless Envoy has exited with the previous one.
func TestKeeperLost_BecomesAnError(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.lose()
		for _, step := range []struct {
			wait time.Duration
			want condition.Severity
		}{{keeperPatience - 100*time.Millisecond, condition.Info},
			{200 * time.Millisecond, condition.Error}} {
			h.wait(step.wait)
			if standing := h.board.Conditions(); len(standing) != 1 || standing[0].Code != conditionKeeper ||
				standing[0].Severity != step.want {
				t.Errorf("want %s: %+v", step.want, standing)
			}
		}
		if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
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
		h.wait(2 * exitPause)
		if live, _, ok := h.s.Live(); ok {
			t.Errorf("epoch %d is live", live.Number)
		}
		for _, standing := range h.board.Conditions() {
			if standing.Severity != condition.Error {
				t.Errorf("%+v", standing)
			}
		}
		if got := h.conditions(); !slices.Contains(got, conditionKeeper) ||
			!slices.Contains(got, conditionDown) {
			t.Errorf("conditions: %v", got)
		}
		if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
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

// If an Envoy exits while its keeper re-executes itself, the next keeper lists it as exited. The
// exit counts as one crash.
func TestKeeperReplacesItself_EnvoyEndsMeanwhile(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.lose()
		h.kill(h.newest(), "SIGKILL")
		h.wait(2 * exitPause)
		if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
			t.Fatal(err)
		}
		h.wait(time.Second)
		h.expect("0 live")
		exited := slices.DeleteFunc(h.s.Epochs(),
			func(e Epoch) bool { return e.State != StateExited })
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
				spec.ValidateCommand = nil
				go func() { _, err := h.apply(spec); done <- err }()
				h.wait(20 * time.Millisecond)
			}
			h.w.lose()
			h.wait(100 * time.Millisecond)
			if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
				t.Fatal(err)
			}
			if starting {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			h.wait(time.Minute)
			if live, _, _ := h.s.Live(); starting != (live.SpecDigest == "b") || h.outage() != 0 {
				t.Errorf("live: %+v; nobody served for %s", live, h.outage())
			}
			h.must(specOf("c"))
		})
	}
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
			if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
				t.Error(err)
			}
			h.wait(5 * time.Second)
			h.do(func() { e.requests = 0 })
		}()
		if took := h.stopIn(false); took < 7*time.Second || took > 9*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// TestRestartLimit_KeeperDoesNotCount lets an Envoy crash as often as the limit of restarts
// permits. Then Envoy exits because its keeper ends, which must not count towards the limit.
func TestRestartLimit_KeeperDoesNotCount(t *testing.T) {
	for name, end := range map[string]func(h *harness){
		"killed":  func(h *harness) { h.w.die() },
		"stopped": func(h *harness) { h.w.stopEnvoys(); h.w.die() },
		"stopped, and one Envoy takes long to end": func(h *harness) {
			h.w.stopEnvoys()
			h.wait(4 * time.Second)
			h.w.die()
		},
		"killed while an Envoy starts": func(h *harness) {
			h.restarting()
			h.w.die()
		},
		"stopped while an Envoy starts": func(h *harness) {
			h.restarting()
			h.w.stopEnvoys()
			h.wait(4 * time.Second)
			h.w.die()
		},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.config.RestartBackoffMin, h.config.RestartBackoffMax = time.Second, time.Second
				h.config.RestartLimit, h.config.RestartWindow = 1, 24*time.Hour
				h.s.Configure(h.config)
				h.must(specOf("a"))
				h.wait(time.Minute)
				h.kill(h.newest(), "SIGKILL")
				h.wait(time.Minute)
				end(h)
				h.wait(time.Second)
				h.do(func() { h.w.behaviour["a"] = behaviour{} })
				if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
					t.Fatal(err)
				}
				h.wait(10 * time.Second)
				h.expect("0 live")
				if got := h.conditions(); len(got) != 0 {
					t.Errorf("conditions: %v", got)
				}
			})
		})
	}
}

// restarting raises the limit by one, kills Envoy and waits until its replacement, which becomes
// live slowly, is starting.
func (h *harness) restarting() {
	h.do(func() { h.w.behaviour["a"] = behaviour{slow: time.Second} })
	h.config.RestartLimit++
	h.s.Configure(h.config)
	h.kill(h.newest(), "SIGKILL")
	h.wait(h.config.RestartBackoffMax + 100*time.Millisecond)
	h.expect("0 starting")
}

// Exits of Envoy by itself count towards the limit of restarts, also after a lost keeper; exits
// because of the keeper do not.
func TestRestartLimit_CountsAfterLostKeeper(t *testing.T) {
	onHost(t, func(h *harness) {
		h.config.RestartBackoffMin, h.config.RestartBackoffMax = time.Second, time.Second
		h.config.RestartLimit, h.config.RestartWindow = 2, 24*time.Hour
		h.s.Configure(h.config)
		h.must(specOf("a"))
		for range 2 {
			h.kill(h.newest(), "SIGKILL")
			h.wait(2 * time.Second)
			h.w.die()
			h.wait(time.Second)
			if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
				t.Fatal(err)
			}
			h.wait(2 * time.Second)
			h.expect("0 live")
		}
		h.kill(h.newest(), "SIGKILL")
		err := <-h.ended
		if !errors.Is(err, ErrRestartsExhausted) {
			t.Errorf("Run returned %v", err)
		}
		h.ended <- err
	})
}
