package epoch

import (
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
)

func version(hash, version string) *Spec {
	spec := specOf(hash)
	spec.HotRestartVersion = version
	return spec
}

func TestSideBySideAndBackToHotRestart(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		if got := h.must(version("b", "12.1")); got != (Result{Epoch: 1, Previous: 0, Mode: SideBySide}) {
			t.Errorf("another hot restart version: %+v", got)
		}
		if e := h.newest(); e.RestartEpoch != 0 || e.Lineage != 1 || !e.HotRestart {
			t.Errorf("it should found a lineage: %+v", e.StartSpec)
		}
		h.do(func() { old.requests = 1 })
		h.wait(6 * time.Second)
		h.expect("1 live, 0 draining")
		h.do(func() { old.requests = 0 })
		h.wait(time.Second)
		h.expect("1 live")
		if old.exit.Signal != "" || time.Since(old.exit.At) > time.Second {
			t.Errorf("the old one: %+v", old.exit)
		}
		if got := h.must(version("c", "12.1")); got != (Result{Epoch: 2, Previous: 1,
			Mode: HotRestart}) {
			t.Errorf("the next: %+v", got)
		}
		if e := h.newest(); e.RestartEpoch != 1 || e.Lineage != 1 {
			t.Errorf("it should go on with the lineage: %+v", e.StartSpec)
		}
		if got := h.must(specOf("d")); got.Epoch != 3 || got.Mode != SideBySide {
			t.Errorf("and back: %+v", got)
		}
		if e := h.newest(); e.RestartEpoch != 0 || e.Lineage != 0 {
			t.Errorf("a free slot: %+v", e.StartSpec)
		}
		h.kill(h.newest(), "SIGKILL")
		h.wait(time.Second)
		h.expect("3 live, 2 draining")
		h.wait(time.Minute)
		h.expect("3 live")
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

func TestWithoutHotRestart(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(version("a", ""))
		if got := h.must(version("b", "")); got.Mode != SideBySide || h.newest().HotRestart {
			t.Errorf("%+v", got)
		}
		// A tunnel keeps the old epoch alive until parent_shutdown_duration.
		old := h.alive()[0]
		h.do(func() { old.tunnels = 1 })
		h.wait(7900 * time.Millisecond)
		h.expect("1 live, 0 draining")
		h.wait(200 * time.Millisecond)
		h.expect("1 live")
		if got := h.must(specOf("c")); got.Epoch != 2 || got.Mode != SideBySide ||
			!h.newest().HotRestart {
			t.Errorf("%+v", got)
		}
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

func TestStuckFlagThatCannotBeCleared(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.do(func() {
			h.w.unclear = true
			h.w.behaviour["bad"] = behaviour{unparsed: true}
		})
		h.refused(specOf("bad"))
		if got := h.must(specOf("b")); got.Mode != SideBySide || got.Epoch != 1 {
			t.Errorf("%+v", got)
		}
		h.wait(20 * time.Second)
		if got := h.must(specOf("c")); got.Mode != HotRestart || got.Epoch != 2 {
			t.Errorf("%+v", got)
		}
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

func TestSideBySideThatFails(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.behaviour["bad"] = behaviour{late: true}
		h.refused(version("bad", "12.1"))
		h.expect("0 live")
		if got := h.conditions(); len(got) != 0 {
			t.Errorf("conditions: %v", got)
		}
		if got := h.must(specOf("b")); got.Mode != HotRestart {
			t.Errorf("%+v", got)
		}
	})
}

func TestParentThatWasStopped(t *testing.T) {
	onHost(t, func(h *harness) { // a stopped parent continues after SIGCONT
		h.must(specOf("a"))
		old := h.newest()
		h.do(func() { old.stopped = true })
		begun := time.Now()
		if got := h.must(specOf("b")); got.Mode != HotRestart || time.Since(begun) > 2*time.Second {
			t.Errorf("%+v after %s", got, time.Since(begun))
		}
	})
	// the parent hangs permanently, so the new epoch starts side by side
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.w.hang(old)
		begun := time.Now()
		if got := h.must(specOf("b")); got.Mode != SideBySide || time.Since(begun) > 3*time.Second {
			t.Errorf("%+v after %s", got, time.Since(begun))
		}
		h.wait(6 * time.Second)
		h.expect("1 live")
		if old.exit.Signal != "SIGKILL" {
			t.Errorf("%+v", old.exit)
		}
	})
	onHost(t, func(h *harness) { // the parent hangs after the preflight, in the handshake
		h.must(specOf("a"))
		old := h.newest()
		spec := specOf("b")
		spec.ValidateCommand = nil
		done := make(chan Result, 1)
		go func() { result, _ := h.apply(spec); done <- result }()
		h.wait(5 * time.Millisecond)
		h.w.hang(old)
		if got := <-done; got.Mode != SideBySide {
			t.Errorf("%+v", got)
		}
		h.wait(30 * time.Second)
		h.expect("1 live")
	})
	// the parent hangs during the overlap, and is killed once it is overdue
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		old := h.alive()[0]
		h.w.hang(old)
		h.wait(8500 * time.Millisecond)
		h.expect("1 live, 0 draining")
		h.wait(1500 * time.Millisecond)
		h.expect("1 live")
		if h.must(specOf("c")).Mode != HotRestart || h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

func TestRepair_ReplacesASilentEnvoy(t *testing.T) {
	onHost(t, func(h *harness) { // a stopped Envoy continues after SIGCONT
		h.must(specOf("a"))
		live := h.newest()
		h.do(func() { live.stopped = true })
		h.wait(30 * time.Second)
		h.expect("0 live")
		if live.stopped || len(h.conditions()) != 0 {
			t.Errorf("conditions: %v", h.conditions())
		}
		seen := false
		for _, e := range h.board.Events(0) {
			seen = seen || e.Kind == condition.KindConditionRaised && e.Fields["code"] == conditionSilent
		}
		if !seen {
			t.Error("nobody was told")
		}
	})
	onHost(t, func(h *harness) { // an Envoy that hangs permanently is replaced
		h.must(specOf("a"))
		h.w.hang(h.newest())
		h.wait(45 * time.Second)
		h.expect("1 live")
		if len(h.conditions()) != 0 {
			t.Errorf("conditions: %v", h.conditions())
		}
	})
	onHost(t, func(h *harness) { // an Envoy whose admin socket is gone is replaced by a hot restart
		h.must(specOf("a"))
		live := h.newest()
		h.do(func() { live.admin = false })
		h.wait(45 * time.Second)
		h.expect("1 live")
		if len(h.conditions()) != 0 || h.outage() != 0 {
			t.Errorf("conditions: %v, nobody served for %s", h.conditions(), h.outage())
		}
	})
}
