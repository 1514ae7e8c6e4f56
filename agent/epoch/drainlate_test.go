package epoch

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A drain request that Envoy may still execute remains in effect, even if its caller has given up.
func TestDrain_StandsWhereEnvoyConfirmsTooLate(t *testing.T) {
	for name, later := range map[string]func(h *harness, e *fakeEnvoy){
		"it answers again": func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.stalls = false; h.w.wake(e) })
		},
		"to the next agent": func(h *harness, e *fakeEnvoy) {
			h.leave()
			h.do(func() { e.stalls = false; h.w.wake(e) })
			h.begin()
		},
		"another one replaces it": func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.wedged = true })
			h.wait(2 * time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				e := h.newest()
				h.do(func() { e.stalls = true })
				ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
				defer cancel()
				if err := h.s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the caller's deadline was not honoured: %v", err)
				}
				h.wait(drainTimeout)
				if live, _, _ := h.s.Live(); !live.DrainRequested ||
					!live.ListenersCloseAt.IsZero() {
					t.Errorf("not known to drain without a confirmation: %+v", live)
				}
				later(h, e)
				h.wait(probeInterval)
				h.expectDrained(h.newest(), true)
				if live, _, _ := h.s.Live(); live.ListenersCloseAt.IsZero() {
					t.Error("when it ends is not known")
				}
			})
		})
	}
}

// If a new epoch does not accept the drain request, the request is repeated until it does.
func TestDrain_IsRepeatedForANewEpoch(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		if err := h.s.Drain(h.t.Context()); err != nil {
			t.Fatal(err)
		}
		h.w.behaviour["b"] = behaviour{sick: func(e *fakeEnvoy) { e.undrainable = true }}
		h.must(specOf("b"))
		h.wait(20 * time.Second)
		e := h.newest()
		if live, _, _ := h.s.Live(); !live.DrainRequested || !live.ListenersCloseAt.IsZero() {
			t.Errorf("before it drains: %+v", live)
		}
		h.do(func() { e.undrainable = false })
		h.wait(probeInterval)
		h.expectDrained(e, true)
		if live, _, _ := h.s.Live(); live.ListenersCloseAt.IsZero() {
			t.Error("when it ends is not known")
		}
	})
}

// When a new epoch takes over, the admin interface of its parent closes. A drain requested at that
// moment takes effect on the epoch that serves afterwards.
func TestDrain_DuringAHandover(t *testing.T) {
	for name, test := range map[string]struct {
		next behaviour
		wait time.Duration // time between the start of the new epoch and the drain request
	}{
		"it gets live":            {behaviour{slow: 10 * time.Second}, time.Second},
		"it fails":                {behaviour{never: true}, time.Second},
		"the one before has none": {behaviour{late: true}, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.w.behaviour["b"] = test.next
				if test.next.late { // the repair, which starts an epoch with spec a, fails as well
					h.w.behaviour["a"] = behaviour{late: true}
				}
				done := make(chan struct{})
				go func() { defer close(done); _, _ = h.apply(specOf("b")) }()
				h.wait(test.wait)
				h.do(func() { h.w.behaviour["a"] = behaviour{} })
				if err := h.s.Drain(h.t.Context()); err != nil {
					t.Error(err)
				}
				<-done
				h.wait(2 * time.Minute)
				h.expectDrained(h.newest(), true)
			})
		})
	}
}
