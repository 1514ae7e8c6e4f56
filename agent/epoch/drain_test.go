package epoch

import (
	"errors"
	"testing"
	"time"
)

// expectDrained checks whether an Envoy drains. A draining Envoy listens until its drain time is
// over.
func (h *harness) expectDrained(e *fakeEnvoy, want bool) {
	h.t.Helper()
	h.wait(6 * time.Second)
	live, _, _ := h.s.Live()
	if listening, unhealthy := h.state(e); listening == want || unhealthy != want ||
		live.DrainRequested != want {
		h.t.Errorf("epoch %d: listens %t, unhealthy %t, said to drain %t; to drain is %t", e.EpochNumber,
			listening, unhealthy, live.DrainRequested, want)
	}
}

// A refused drain has no effect, neither immediately nor on a later epoch.
func TestDrain_ChangesNothingIfRefused(t *testing.T) {
	for name, refuse := range map[string]func(h *harness) error{
		"no epoch is live": func(h *harness) error {
			h.kill(h.newest(), "SIGSEGV") // Envoy is started again immediately
			h.wait(time.Second)
			h.kill(h.newest(), "SIGSEGV") // Envoy is started again only after a back-off
			err := h.s.Drain(h.t.Context())
			if !errors.Is(err, errNotLive) {
				h.t.Errorf("with nothing to drain: %v", err)
			}
			h.wait(5 * time.Second)
			return err
		},
		"its admin is gone": func(h *harness) error {
			e := h.newest()
			h.do(func() { e.admin = false })
			return h.s.Drain(h.t.Context())
		},
		"it hangs": func(h *harness) error {
			e := h.newest()
			h.do(func() { e.stopped = true })
			err := h.s.Drain(h.t.Context())
			h.do(func() { h.w.wake(e) })
			return err
		},
		"half of it": func(h *harness) error {
			e := h.newest()
			h.do(func() { e.undrainable = true })
			return h.s.Drain(h.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				if err := refuse(h); err == nil {
					t.Fatal("it was not refused")
				}
				h.expectDrained(h.newest(), false)
				h.must(specOf("b"))
				h.expectDrained(h.newest(), false)
			})
		})
	}
}

// If a repeated drain request is refused, the earlier drain remains in effect.
func TestDrain_StandsThoughRepetitionIsRefused(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		if err := h.s.Drain(h.t.Context()); err != nil {
			t.Fatal(err)
		}
		e := h.newest()
		h.do(func() { e.undrainable = true })
		if err := h.s.Drain(h.t.Context()); err == nil {
			t.Fatal("it was not refused")
		}
		h.expectDrained(h.newest(), true)
	})
}

// If an epoch becomes live while Drain sends its request to the epoch's parent, the new epoch
// drains as well.
func TestDrain_FollowsToANewEpoch(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.do(func() { old.slowAdmin = 3 * time.Second })
		done := make(chan error, 1)
		go func() { done <- h.s.Drain(h.t.Context()) }()
		h.wait(time.Second)
		h.must(version("b", "12.1"))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, next := range []string{"", "d"} {
			if next != "" {
				h.must(specOf(next))
			}
			h.wait(10 * time.Second)
			if _, unhealthy := h.state(h.newest()); !unhealthy {
				t.Errorf("the epoch of %q does not drain", next)
			}
		}
	})
}

// The record of a draining epoch contains the time when its listeners close, counted from the first
// drain request. After a restart the agent reports the same time.
func TestDrain_ReportsItsEnd(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		ends := func() time.Duration {
			live, _, _ := h.s.Live()
			return time.Until(live.ListenersCloseAt).Round(time.Millisecond)
		}
		drain := func() {
			if err := h.s.Drain(h.t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		drain()
		if got := ends(); got != 5*time.Second { // known immediately after the request
			t.Errorf("it ends in %s", got)
		}
		h.wait(2 * time.Second)
		drain()
		h.leave()
		h.begin()
		if got := ends(); got != 3*time.Second {
			t.Errorf("it ends in %s", got)
		}
		h.must(specOf("b"))
		h.wait(0)
		if got := ends(); got != 5*time.Second {
			t.Errorf("of the next epoch it ends in %s", got)
		}
	})
}

// HalfDrainedAt is computed from the drain time with which the epoch was started, also after a
// restart of the agent.
func TestDrain_HalfIsThatOfTheEpoch(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a")) // the drain time of specOf is 5 s
		if live, _, _ := h.s.Live(); !live.HalfDrainedAt(time.Now()).IsZero() {
			t.Errorf("before a drain: %v", live.HalfDrainedAt(time.Now()))
		}
		if err := h.s.Drain(h.t.Context()); err != nil {
			t.Fatal(err)
		}
		h.wait(0)
		want := time.Now().Add(2500 * time.Millisecond)
		for _, agent := range []string{"this agent", "the next"} {
			live, _, _ := h.s.Live()
			if off := live.HalfDrainedAt(time.Now()).Sub(want).Abs(); off > 100*time.Millisecond {
				t.Errorf("%s: half is off by %s", agent, off)
			}
			h.leave()
			h.begin()
		}
	})
}
