package epoch

import (
	"log/slog"
	"slices"
	"testing"
)

// LogLevelApplier sends levels to the live Envoy only if they differ from those with which it was
// started, or from those that were sent last.
func TestLogLevels_SetOnlyWhereTheyDiffer(t *testing.T) {
	onHost(t, func(h *harness) {
		t := h.t
		l := NewLogLevelApplier(h.s, h.board, slog.New(slog.DiscardHandler))
		configure := func(level string) {
			l.Configure(t.Context(), level, "http:debug", levelled("a", level))
		}
		expect := func(when string, refused bool, sent ...string) {
			t.Helper()
			if got := h.newest().levels; !slices.Equal(got, sent) {
				t.Errorf("%s: %q was sent, want %q", when, got, sent)
			}
			if raised := slices.Contains(h.conditions(), conditionLevels); raised != refused {
				t.Errorf("%s: conditions %q", when, h.conditions())
			}
		}
		h.must(levelled("a", "info"))
		l.Update(t.Context())
		expect("before Configure", false)
		configure("info")
		expect("the live epoch has the levels", false)
		configure("debug")
		expect("the live epoch differs", false, "debug http:debug")
		h.do(func() { h.w.all[len(h.w.all)-1].unlevelled = true })
		configure("error")
		expect("Envoy refuses", true, "debug http:debug")
		l.Update(t.Context())
		h.do(func() { h.w.all[len(h.w.all)-1].unlevelled = false })
		l.Update(t.Context())
		expect("no retry without a change", true, "debug http:debug")
		// the replacement starts immediately, with the levels that were configured last
		h.kill(h.newest(), "SIGKILL")
		configure("debug")
		expect("no live epoch", true)
		h.wait(levelTimeout)
		h.expectLevel("error")
		l.Update(t.Context())
		l.Update(t.Context())
		expect("the next epoch differs", false, "debug http:debug")
		h.leave()
		configure("info")
		expect("the supervisor has ended", false, "debug http:debug")
		h.begin()
	})
}
