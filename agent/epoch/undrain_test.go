package epoch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func (h *harness) drain() {
	h.t.Helper()
	if err := h.s.Drain(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// undrain starts an undrain and returns the channel of its outcome.
func (h *harness) undrain(onWait func(time.Time, string)) <-chan answer {
	done := make(chan answer, 1)
	s := h.s
	go func() {
		result, err := s.Undrain(h.t.Context(), onWait)
		done <- answer{result: result, err: err}
	}()
	h.wait(0)
	return done
}

// expectServes checks that the live epoch accepts connections, and that it is healthy and remains
// so.
func (h *harness) expectServes() {
	h.t.Helper()
	h.wait(time.Minute)
	live, _, _ := h.s.Live()
	if listening, unhealthy := h.state(h.newest()); !listening || unhealthy || live.DrainRequested {
		h.t.Errorf("listens %t, unhealthy %t, %+v", listening, unhealthy, live)
	}
}

func TestUndrain_RestoresServiceByANewEpoch(t *testing.T) {
	for name, after := range map[string]time.Duration{
		"before the listeners close": time.Second,
		"while they close":           5*time.Second - toLive/2, // the drain time of specOf is 5 s
		"after they closed":          10 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				h.drain()
				h.wait(after)
				a := <-h.undrain(nil)
				if a.err != nil || a.result != (Result{Epoch: 1, Previous: 0, Mode: HotRestart}) {
					t.Fatalf("%+v", a)
				}
				if listening, unhealthy := h.state(h.newest()); !listening || unhealthy {
					t.Errorf("it returned: listens %t, unhealthy %t", listening, unhealthy)
				}
				h.expectServes()
				h.must(specOf("b"))
				h.expectServes()
			})
		})
	}
}

func TestUndrain_WithoutADrainDoesNothing(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		a := <-h.undrain(nil)
		if a.err != nil || a.result != (Result{Mode: NoNewEpoch}) {
			t.Errorf("%+v", a)
		}
		h.expectServes()
	})
}

func TestUndrain_ThatFailsChangesNothing(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.drain()
		h.do(func() { h.w.behaviour["a"] = behaviour{late: true} })
		a := <-h.undrain(nil)
		var refused *AttemptError
		if !errors.As(a.err, &refused) || refused.Remaining != 0 {
			t.Fatalf("%+v", a)
		}
		h.do(func() { h.w.behaviour["a"] = behaviour{} })
		h.wait(2 * time.Minute) // a repair restores the admin interface
		h.expectDrained(h.newest(), true)
		h.must(specOf("b"))
		h.expectDrained(h.newest(), true)
		if a := <-h.undrain(nil); a.err != nil {
			t.Error(a.err)
		}
		h.expectServes()
	})
}

// If a reload starts an epoch while an undrain waits, this epoch restores service, and the undrain
// starts none.
func TestUndrain_JoinsAReload(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.drain()
		reload := make(chan error, 1)
		go func() { _, err := h.apply(specOf("b")); reload <- err }()
		h.wait(70 * time.Millisecond) // epoch 1 is validated, but not live yet
		a := <-h.undrain(nil)
		if err := <-reload; err != nil || a.err != nil || a.result.Epoch != 1 {
			t.Errorf("%v, %+v", err, a)
		}
		h.expectServes()
		h.expect("1 live")
	})
}

// If the reload for whose epoch an undrain waits is refused, the undrain starts an epoch itself.
func TestUndrain_OutlivesARefusedReload(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.drain()
		h.w.behaviour["bad"] = behaviour{unparsed: true}
		reload := make(chan error, 1)
		go func() { _, err := h.apply(specOf("bad")); reload <- err }()
		h.wait(70 * time.Millisecond)
		a := <-h.undrain(nil)
		if err := <-reload; err == nil || a.err != nil {
			t.Errorf("%v, %+v", err, a)
		}
		h.expectServes()
	})
}

func TestUndrain_SaysWhatItWaitsFor(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		old := h.alive()[0]
		h.do(func() { old.requests = 1 })
		h.drain()
		var told []string
		begun := time.Now()
		done := h.undrain(func(until time.Time, why string) {
			told = append(told, fmt.Sprintf("%s %s", until.Sub(begun).Round(time.Second), why))
		})
		h.wait(2 * time.Second)
		if live, _, _ := h.s.Live(); live.NextEpochWaitReason != "waiting for epoch 0 to finish "+
			"draining, 1 "+
			"client connection left" {
			t.Errorf("reason to wait for the next epoch: %q", live.NextEpochWaitReason)
		}
		a := <-done
		if a.err != nil || len(told) < 2 || !strings.HasPrefix(told[0], "8s ") {
			t.Errorf("%+v, told %q", a, told)
		}
		h.expectServes()
		if live, _, _ := h.s.Live(); live.NextEpochWaitReason != "" {
			t.Errorf("reason to wait for the next epoch: %q", live.NextEpochWaitReason)
		}
	})
}

func TestUndrain_IsEndedByADrain(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.drain()
		h.w.behaviour["a"] = behaviour{slow: 2 * time.Second}
		done := h.undrain(nil)
		h.wait(time.Second)
		h.drain()
		if a := <-done; !errors.Is(a.err, errDrainedAgain) {
			t.Errorf("%+v", a)
		}
		h.wait(10 * time.Second)
		h.expectDrained(h.newest(), true)
	})
}

func TestUndrain_OutlivesItsCaller(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.drain()
		h.w.behaviour["a"] = behaviour{slow: 2 * time.Second}
		ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
		defer cancel()
		if _, err := h.s.Undrain(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		h.expectServes()
	})
}

func TestUndrain_DuringACrashAndAStop(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.drain()
		h.w.behaviour["a"] = behaviour{slow: 5 * time.Second}
		done := h.undrain(nil)
		h.wait(time.Second)
		h.kill(h.alive()[0], "SIGSEGV")
		if a := <-done; a.err != nil {
			t.Errorf("%+v", a)
		}
		h.expectServes()
		h.drain()
		done = h.undrain(nil)
		h.wait(time.Second)
		h.stopIn(false)
		if a := <-done; !errors.Is(a.err, ErrStopping) {
			t.Errorf("%+v", a)
		}
	})
}

// While the listeners of an epoch may be closed, because its child took them over and was killed,
// ListenersMaybeClosed is set in its record.
func TestMayRefuse(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.behaviour["b"] = behaviour{slow: time.Second}
		h.w.behaviour["a"] = behaviour{slow: time.Second}
		go func() { _, _ = h.apply(specOf("b")) }()
		h.wait(500 * time.Millisecond)
		h.kill(h.newest(), "SIGKILL")
		h.wait(100 * time.Millisecond)
		if live, _, _ := h.s.Live(); !live.ListenersMaybeClosed {
			t.Errorf("%+v", live)
		}
		h.wait(10 * time.Second)
		if live, _, _ := h.s.Live(); live.ListenersMaybeClosed {
			t.Errorf("%+v", live)
		}
	})
}

func TestUndrain_NeedsTheConfigurationOfAnAdoptedEpoch(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.drain()
		h.leave()
		h.begin()
		if live, _, _ := h.s.Live(); !live.DrainRequested {
			t.Errorf("%+v", live)
		}
		if a := <-h.undrain(nil); !errors.Is(a.err, errAdoptedSpec) {
			t.Errorf("before its configuration is known: %+v", a)
		}
		h.must(specOf("b"))
		if a := <-h.undrain(nil); a.err != nil {
			t.Error(a.err)
		}
		h.expectServes()
	})
}
