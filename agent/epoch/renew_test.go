package epoch

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// levelled returns a spec whose command line has a log level. Its digest is hash, whatever the
// level.
func levelled(hash, level string) *Spec {
	spec := specOf(hash)
	command := spec.Command
	spec.Command = func(l LaunchInput) (Command, error) {
		c, err := command(l)
		c.Args = append(slices.Clone(c.Args), level)
		return c, err
	}
	return spec
}

// expectLevel checks which log level the newest Envoy was started with.
func (h *harness) expectLevel(want string) {
	h.t.Helper()
	if got := h.newest().Args[3]; got != want {
		h.t.Errorf("epoch %d was started with %s, want %s", h.newest().EpochNumber, got, want)
	}
}

// differs passes a spec to updateSpec, and checks the result: whether the live epoch must
// be adjusted to the spec.
func (h *harness) differs(spec *Spec, want bool) {
	h.t.Helper()
	if got, err := h.s.updateSpec(h.t.Context(), spec); err != nil || got != want {
		h.t.Errorf("the live epoch has another command line: %t, %v; want %t", got, err, want)
	}
}

// renew passes a spec to updateSpec, and checks the result: whether the live epoch must be
// adjusted to the spec. If so, it records the adjustment.
func (h *harness) renew(spec *Spec, differs bool) {
	h.t.Helper()
	h.differs(spec, differs)
	if live, _, _ := h.s.Live(); differs {
		if err := h.s.recordAppliedLogLevels(h.t.Context(), live.ID, spec); err != nil {
			h.t.Error(err)
		}
	}
}

// adoptAs replaces the agent. The new agent adopts the serving epoch and applies a spec with the
// digest of that epoch.
func (h *harness) adoptAs(spec *Spec) {
	h.t.Helper()
	h.leave()
	h.begin()
	result, err := h.s.Apply(h.t.Context(), Request{Spec: spec, Reason: "start", IfChanged: true})
	if err != nil || result.Mode != NoNewEpoch {
		h.t.Fatalf("%+v, %v", result, err)
	}
}

func TestRenew_CountsAfterACrash(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(levelled("a", "warning"))
		h.renew(levelled("a", "warning"), false)
		brief := levelled("a", "info")
		brief.LiveTimeout = 3 * time.Second
		h.renew(brief, true)
		h.renew(brief, false)
		h.kill(h.newest(), "SIGKILL")
		h.wait(time.Second)
		h.expectLevel("info")
		h.do(func() { h.w.behaviour["a"] = behaviour{never: true} })
		h.kill(h.newest(), "SIGKILL")
		h.wait(6 * time.Second)
		if !strings.Contains(h.log.String(), "not live within 3s") {
			t.Error("live_timeout is as it was")
		}
	})
}

func TestRenew_OnlyOfTheSameHash(t *testing.T) {
	onHost(t, func(h *harness) {
		h.renew(levelled("a", "info"), false)
		h.must(levelled("a", "warning"))
		h.renew(levelled("b", "info"), false)
		h.kill(h.newest(), "SIGKILL")
		h.wait(time.Second)
		h.expectLevel("warning")
	})
}

// A failed start is retried with the spec that was passed to updateSpec in the meantime.
func TestRenew_OfAFailedStart(t *testing.T) {
	onHost(t, func(h *harness) {
		h.do(func() { h.w.behaviour["a"] = behaviour{late: true} })
		h.refused(levelled("a", "warning"))
		h.renew(levelled("a", "info"), false)
		h.wait(5 * time.Second)
		h.expectLevel("info")
	})
}

// The note of an epoch contains its last adjustment, so that after a restart of the agent
// updateSpec reports only what still differs.
func TestRenew_OfAnAdoptedEpoch(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(levelled("a", "warning"))
		h.renew(levelled("a", "info"), true)
		h.adoptAs(levelled("a", "info"))
		h.renew(levelled("a", "info"), false)
		h.adoptAs(levelled("a", "error"))
		h.renew(levelled("a", "error"), true)
		h.leave()
		h.begin()
		h.kill(h.newest(), "SIGKILL") // before the agent has applied a spec
		h.wait(time.Second)
		h.expectLevel("error")
	})
}

// updateSpec reports that the live epoch must be adjusted until recordAppliedLogLevels
// records the adjustment, also after a restart of the agent.
func TestRenew_DiffersUntilTuned(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(levelled("a", "warning"))
		h.differs(levelled("a", "info"), true)
		h.differs(levelled("a", "info"), true)
		h.adoptAs(levelled("a", "info"))
		h.renew(levelled("a", "info"), true)
		h.renew(levelled("a", "info"), false)
		if err := h.s.recordAppliedLogLevels(h.t.Context(), "who has ended",
			levelled("a", "error")); err != nil {
			t.Error(err)
		}
		h.renew(levelled("a", "info"), false)
	})
}

// updateSpec does not change the spec of a repair that is starting. Once the repaired epoch
// is live, updateSpec reports that it must be adjusted.
func TestRenew_DuringARepair(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(levelled("a", "warning"))
		h.do(func() {
			h.w.behaviour["bad"], h.w.behaviour["a"] = behaviour{late: true}, behaviour{slow: 10 * time.Second}
		})
		h.refused(specOf("bad"))
		h.wait(time.Second)
		h.expectLevel("warning")
		h.differs(levelled("a", "info"), true)
		h.wait(time.Minute)
		h.adminIsBack()
		h.renew(levelled("a", "info"), true)
		h.renew(levelled("a", "info"), false)
		h.kill(h.newest(), "SIGKILL")
		h.wait(time.Second)
		h.expectLevel("info")
	})
}
