package epoch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestUnreplaced_IsRestartedByTheNextAgent ends the agent after Envoy has exited and before a
// successor is live. The spec that the next agent applies never becomes live, so an epoch serves
// only if this agent restarts the exited one from its note and bootstrap file.
func TestUnreplaced_IsRestartedByTheNextAgent(t *testing.T) {
	for name, was := range map[string]struct {
		file   func(path string) error // changes the bootstrap file while no agent runs
		serves bool
	}{
		"at once":             {func(string) error { return nil }, true},
		"its file is another": {func(path string) error { return os.WriteFile(path, []byte("never 1"), 0o600) }, false},
		"its file is gone":    {os.Remove, false},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.w.behaviour["never"] = behaviour{never: true}
				h.must(specOf("a"))
				h.must(specOf("b"))
				h.wait(20 * time.Second)
				h.kill(h.newest(), "SIGKILL")
				h.wait(time.Millisecond)
				h.leave()
				// kill epochs that the first agent already started again
				for _, e := range h.alive() {
					h.kill(e, "SIGKILL")
				}
				if err := was.file(filepath.Join(h.dir, "envoy-rev1.json")); err != nil {
					t.Fatal(err)
				}
				before := h.outage()
				h.begin()
				go func() { _, _ = h.apply(specOf("never")) }()
				h.wait(3 * time.Second)
				live, _, serves := h.s.Live()
				if serves != was.serves || serves && live.SpecDigest != "b" {
					t.Fatalf("serves: %v, live: %+v", serves, live)
				}
				if down := h.outage() - before; serves && down > time.Second {
					t.Errorf("nobody served for %s", down)
				}
				h.must(specOf("c"))
				h.wait(20 * time.Second)
				if live, _, _ := h.s.Live(); live.SpecDigest != "c" || len(h.files()) != 1 {
					t.Errorf("live: %+v; files: %v", live, h.files())
				}
			})
		})
	}
}

// TestUnreplaced_LeavesNothingAfterAStop stops after Envoy has exited, when its bootstrap file is
// retained for the next agent. The stop removes the file.
func TestUnreplaced_LeavesNothingAfterAStop(t *testing.T) {
	onHost(t, func(h *harness) {
		h.config.RestartBackoffMin, h.config.RestartBackoffMax = time.Minute, time.Minute
		h.s.Configure(h.config)
		h.must(specOf("a"))
		// Envoy is started again immediately after the first exit, and later after the second
		for range 2 {
			h.kill(h.newest(), "SIGKILL")
			h.wait(time.Second)
		}
		if got := h.files(); !cmp.Equal(got, []string{"envoy-rev0.json"}) {
			t.Errorf("files while nobody serves: %v", got)
		}
		h.stopIn(false)
	})
}

// TestAdoption_TriesAFailedSpecOnce starts an agent whose configuration works, after an Envoy
// exited whose spec no longer works. The agent tries the old spec once, then its own.
func TestAdoption_TriesAFailedSpecOnce(t *testing.T) {
	for name, test := range map[string]struct {
		ails behaviour
		down time.Duration // maximum outage
	}{"it fails": {behaviour{late: true}, time.Second},
		"it hangs": {behaviour{never: true}, specOf("").LiveTimeout + time.Second}} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.wait(time.Minute)
				h.w.behaviour["a"] = test.ails
				h.kill(h.newest(), "SIGKILL")
				for len(h.alive()) > 0 {
					h.wait(100 * time.Millisecond)
				}
				h.wait(100 * time.Millisecond) // the next restart is delayed by the back-off
				h.leave()
				h.wait(time.Second)
				h.config.RestartLimit = 2
				h.s.Configure(h.config)
				before := h.outage()
				h.begin()
				h.must(specOf("repaired"))
				if down := h.outage() - before; down > test.down {
					t.Errorf("nobody served for %s", down)
				}
			})
		})
	}
}
