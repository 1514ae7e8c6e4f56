package epoch

import (
	"strings"
	"testing"
	"time"
)

// expectSteering checks whether the keeper steers new connections away from an Envoy, and for how
// long the Envoy is expected to listen.
func (h *harness) expectSteering(e *fakeEnvoy, steered bool, listens time.Duration) {
	h.t.Helper()
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if e.steered != steered || steered && time.Until(e.closes) != listens {
		h.t.Errorf("epoch %d: steered %v, closes in %v; should be %v, %v", e.EpochNumber, e.steered,
			time.Until(e.closes), steered, listens)
	}
}

// After a start side by side, new connections are steered to the new epoch before the old one
// closes its listeners. Otherwise the fake Envoy would record a fault.
func TestSteerSideBySide(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.must(version("b", "12.1"))
		h.do(func() { old.tunnels = 1 })
		h.wait(0)
		h.expectSteering(old, true, 5*time.Second)
		h.wait(5001 * time.Millisecond)
		if listens, _ := h.state(old); listens {
			t.Error("its drain is over, and it listens")
		}
	})
	// in a hot restart the new epoch takes over the listeners, so nothing is steered
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.must(specOf("b"))
		h.wait(7 * time.Second)
		h.expectSteering(old, false, 0)
	})
}

// After a restart, the agent steers connections again.
func TestSteerAdopted(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.must(version("b", "12.1"))
		h.do(func() { old.tunnels = 1 })
		h.leave()
		h.wait(time.Second)
		h.do(func() { old.closes = time.Time{} })
		h.begin()
		h.expectSteering(old, true, 4*time.Second)
		h.wait(time.Minute)
		h.expect("1 live")
	})
}

// If the drain time is too short to accept the queued connections, the drain starts later.
func TestSteerBriefDrain(t *testing.T) {
	onHost(t, func(h *harness) {
		spec := specOf("a")
		spec.DrainTime = 0
		spec.Command = func(LaunchInput) (Command, error) {
			return Command{Path: "envoy", Args: []string{"a", "0s", "8s"}}, nil
		}
		h.must(spec)
		old := h.newest()
		h.must(version("b", "12.1"))
		h.do(func() { old.tunnels = 1 })
		h.wait(0)
		h.expectSteering(old, true, 0)
		h.wait(900 * time.Millisecond)
		if listens, _ := h.state(old); !listens {
			t.Error("it closed its listeners before it had accepted what waited")
		}
		h.wait(200 * time.Millisecond)
		if listens, _ := h.state(old); listens {
			t.Error("it was not drained")
		}
	})
}

// An epoch without admin interface cannot be drained. It exits at the end of its parent shutdown
// time.
func TestSteerWithoutAdmin(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.w.behaviour["bad"] = behaviour{never: true}
		go func() { _, _ = h.apply(specOf("bad")) }()
		h.wait(time.Second)
		// the request for b is waiting already, so no repair is started
		h.must(version("b", "12.1"))
		h.wait(0)
		h.expectSteering(old, true, 8*time.Second)
		h.wait(8100 * time.Millisecond)
		h.expect("1 live")
	})
}

// If the keeper cannot steer connections, the new epoch starts nevertheless.
func TestSteerImpossible(t *testing.T) {
	onHost(t, func(h *harness) {
		h.do(func() { h.w.unsteered = true })
		h.must(specOf("a"))
		h.must(version("b", "12.1"))
		h.wait(10 * time.Second)
		h.expect("1 live")
		if !strings.Contains(h.log.String(), "cannot steer new connections") {
			t.Errorf("nobody was told:\n%s", h.log.String())
		}
		if len(h.conditions()) != 0 || h.outage() != 0 {
			t.Errorf("conditions: %v, nobody served for %s", h.conditions(), h.outage())
		}
	})
}
