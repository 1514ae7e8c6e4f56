package epoch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
)

func TestFirstStartThenHotRestart(t *testing.T) {
	onHost(t, func(h *harness) {
		if got := h.must(specOf("a")); got != (Result{Epoch: 0, Previous: -1, Mode: FirstStart}) {
			t.Errorf("first: %+v", got)
		}
		if h.w.runs != 0 {
			t.Error("a first start was validated: it costs time and protects nothing")
		}
		content, err := os.ReadFile(filepath.Join(h.dir, "envoy-rev0.json"))
		if err != nil || string(content) != "a 0" {
			t.Errorf("bootstrap: %q, %v", content, err)
		}
		info, err := os.Stat(filepath.Join(h.dir, "envoy-rev0.json"))
		if err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode of the bootstrap: %v, %v", info.Mode(), err)
		}
		if got := h.must(specOf("b")); got != (Result{Epoch: 1, Previous: 0, Mode: HotRestart}) {
			t.Errorf("second: %+v", got)
		}
		if h.w.runs != 1 {
			t.Errorf("validated %d times", h.w.runs)
		}
		h.expect("1 live, 0 draining")
		h.wait(9 * time.Second)
		h.expect("1 live")
		if got := h.files(); !cmp.Equal(got, []string{"envoy-rev1.json"}) {
			t.Errorf("files: %v", got)
		}
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
		kinds := []string{}
		for _, e := range h.board.Events(0) {
			kinds = append(kinds, e.Kind)
		}
		want := []string{condition.KindEpochStarted, condition.KindEpochLive, condition.KindEpochStarted,
			condition.KindEpochLive, condition.KindEpochExited}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRequestsInTheOverlapAreMerged(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		old := h.alive()[0]
		h.do(func() { old.requests = 1 })
		overlapEnds := time.Now().Add(8 * time.Second)
		var waiting sync.WaitGroup
		for _, hash := range []string{"c", "d", "e"} {
			waiting.Go(func() {
				var until time.Time
				result, err := h.s.Apply(h.t.Context(), Request{Spec: specOf(hash), Reason: hash,
					OnWait: func(u time.Time, why string) {
						if strings.Contains(why, "epoch 0") {
							until = u
						}
					}})
				if err != nil || result != (Result{Epoch: 2, Previous: 1, Mode: HotRestart}) {
					t.Errorf("%s: %+v, %v", hash, result, err)
				}
				if gap := until.Sub(overlapEnds); gap < -time.Second || gap > time.Second {
					t.Errorf("%s was told to wait until %s, the overlap ends at %s", hash, until, overlapEnds)
				}
			})
			h.wait(100 * time.Millisecond)
		}
		waiting.Wait()
		if live, _, _ := h.s.Live(); live.SpecDigest != "e" || live.Number != 2 {
			t.Errorf("live: %+v, the newest spec should have won", live)
		}
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

func TestTheLastOfManyRequestsCounts(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		var waits []func(context.Context) (Result, error)
		for i := range 26 {
			waits = append(waits, h.s.Submit(Request{Spec: specOf(string(rune('A' + i))), Reason: "test"}))
		}
		for _, wait := range waits {
			if _, err := wait(h.t.Context()); err != nil {
				t.Error(err)
			}
		}
		if live, _, _ := h.s.Live(); live.SpecDigest != "Z" {
			t.Errorf("live: %+v, want the one that was asked for last", live)
		}
	})
}

func TestReloadStorm(t *testing.T) {
	onHost(t, func(h *harness) {
		h.w.clients = 1
		h.must(specOf("a"))
		var waiting sync.WaitGroup
		for i := range 30 {
			waiting.Go(func() {
				if _, err := h.apply(specOf(string(rune('A' + i)))); err != nil {
					t.Error(err)
				}
			})
			h.wait(time.Second)
		}
		waiting.Wait()
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
		if live, _, _ := h.s.Live(); live.Number < 3 || live.Number > 5 {
			t.Errorf("epoch %d after 30 requests in 30 s with 8 s of overlap each", live.Number)
		}
	})
}

func TestUnchanged(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		result, err := h.s.Apply(h.t.Context(), Request{Spec: specOf("b"), IfChanged: true})
		if err != nil || result != (Result{Epoch: 1, Previous: 1, Mode: NoNewEpoch}) {
			t.Errorf("%+v, %v", result, err)
		}
		// The spec changes, and changes back while the request waits for the end of the overlap: no
		// epoch is needed.
		ctx, cancel := context.WithCancel(h.t.Context())
		go func() { _, _ = h.s.Apply(ctx, Request{Spec: specOf("c"), IfChanged: true}) }()
		synctest.Wait()
		result, err = h.s.Apply(h.t.Context(), Request{Spec: specOf("b"), IfChanged: true})
		cancel()
		if err != nil || result.Mode != NoNewEpoch {
			t.Errorf("%+v, %v", result, err)
		}
		h.wait(20 * time.Second)
		h.expect("1 live")
		if result := h.must(specOf("b")); result.Epoch != 2 {
			t.Errorf("a forced request for the same: %+v", result)
		}
	})
}

func TestBrokenSpecsChangeNothing(t *testing.T) {
	for name, test := range map[string]struct {
		behaviour behaviour
		spec      func(*Spec)
		want      string
	}{
		"refused by validation": {behaviour: behaviour{invalid: true}, want: "unknown cluster 'x'"},
		"cannot be parsed":      {behaviour: behaviour{unparsed: true}, want: "exited with code 1"},
		"no bootstrap": {spec: func(s *Spec) {
			s.Bootstrap = func(LaunchInput) ([]byte, error) { return nil, errors.New("template: line 3") }
		}, want: "template: line 3"},
		"no command": {spec: func(s *Spec) {
			s.Command = func(LaunchInput) (Command, error) {
				return Command{},
					errors.New("extra_args")
			}
		}, want: "extra_args"},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.w.behaviour["bad"] = test.behaviour
				bad := specOf("bad")
				if test.spec != nil {
					test.spec(bad)
				}
				for range 3 { // repeated failures have the same result
					refused := h.refused(bad)
					if !strings.Contains(refused.Error(), test.want) || refused.Remaining != 0 ||
						refused.Number != 1 {
						t.Errorf("refused with %q (%d goes on), should say %q", refused, refused.Remaining, test.want)
					}
					synctest.Wait()
					h.expect("0 live")
					if got := h.conditions(); len(got) != 0 {
						t.Errorf("conditions %v", got)
					}
					if got := h.files(); !cmp.Equal(got, []string{"envoy-rev0.json"}) {
						t.Errorf("files: %v", got)
					}
				}
				if got := h.must(specOf("b")); got != (Result{Epoch: 1, Previous: 0,
					Mode: HotRestart}) {
					t.Errorf("the next one: %+v", got)
				}
				if got := h.conditions(); len(got) != 0 {
					t.Errorf("conditions after it: %v", got)
				}
				if h.outage() != 0 {
					t.Errorf("nobody served for %s", h.outage())
				}
			})
		})
	}
}

func TestAbortOfAStartingEpoch(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.behaviour["never"] = behaviour{never: true}
		errs := make(chan error, 1)
		go func() { _, err := h.apply(specOf("never")); errs <- err }()
		h.wait(time.Second)
		h.expect("1 starting, 0 handing over")
		if err := h.s.Abort(h.t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; !errors.Is(err, errAborted) {
			t.Errorf("refused with %v", err)
		}
		if err := h.s.Abort(h.t.Context(), 7); !errors.Is(err, ErrNoEpoch) {
			t.Errorf("abort of an epoch that is not: %v", err)
		}
		// Wait until the repair has restored the admin interface. Its first attempt exits because
		// the hot-restart socket still has the reply to the aborted epoch.
		h.wait(time.Second)
		h.expect("1 live, 0 draining")
		h.adminIsBack()
		h.w.allowed = true
		if err := h.s.Abort(h.t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if got := h.must(specOf("b")); got != (Result{Epoch: 2, Previous: 1, Mode: HotRestart}) {
			t.Errorf("%+v", got)
		}
		h.wait(20 * time.Second)
		h.expect("2 live")
		if h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}
