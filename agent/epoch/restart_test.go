package epoch

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
)

func TestRestart_AfterACrash(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		h.wait(9 * time.Second)
		h.kill(h.newest(), "SIGSEGV")
		h.wait(time.Second)
		h.expect("0 live")
		if live, _, _ := h.s.Live(); live.SpecDigest != "b" || !strings.Contains(live.Reason,
			"SIGSEGV") {
			t.Errorf("started again: %+v", live)
		}
		if h.outage() > 100*time.Millisecond {
			t.Errorf("nobody served for %s", h.outage())
		}
		var exited *Epoch
		for _, e := range h.s.Epochs() {
			if e.State == StateExited && e.SpecDigest == "b" {
				exited = &e
			}
		}
		if exited == nil || exited.ExitCause != "ended by SIGSEGV" || exited.ExitSignal != "SIGSEGV" {
			t.Errorf("record of the exit: %+v", exited)
		}
	})
}

func TestRestart_NewestDiesInTheOverlap(t *testing.T) {
	for _, rescue := range []bool{true, false} {
		onHost(t, func(h *harness) {
			h.w.rescue = rescue
			h.must(specOf("a"))
			h.must(specOf("b"))
			h.wait(time.Second)
			h.kill(h.newest(), "SIGKILL")
			h.wait(500 * time.Millisecond)
			h.expect("1 live, 0 draining")
			if h.outage() > 100*time.Millisecond {
				t.Errorf("nobody served for %s", h.outage())
			}
			h.wait(9 * time.Second)
			h.expect("1 live")
			if got := h.must(specOf("c")); got.Epoch != 2 || got.Mode != HotRestart {
				t.Errorf("the next: %+v", got)
			}
		})
	}
}

func TestRestart_OldestDiesInTheOverlap(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		h.wait(time.Second)
		h.kill(h.alive()[0], "SIGKILL")
		h.expect("1 live")
		h.wait(time.Minute)
		if h.must(specOf("c")).Epoch != 2 || h.outage() != 0 {
			t.Errorf("nobody served for %s", h.outage())
		}
	})
}

func TestAttempt_ParentDies(t *testing.T) {
	for _, after := range []time.Duration{5, 20, 30, 40, 49, 51, 60} {
		onHost(t, func(h *harness) {
			h.must(specOf("a"))
			parent := h.newest()
			spec := specOf("b")
			spec.ValidateCommand = nil
			done := make(chan error, 1)
			go func() { _, err := h.apply(spec); done <- err }()
			h.wait(after * time.Millisecond)
			h.kill(parent, "SIGKILL")
			if err := <-done; err != nil {
				t.Errorf("after %dms: %v", after, err)
			}
			h.wait(10 * time.Second)
			if live, _, _ := h.s.Live(); live.SpecDigest != "b" {
				t.Errorf("after %dms: live is %+v", after, live)
			}
			if h.outage() > time.Second {
				t.Errorf("after %dms: nobody served for %s", after, h.outage())
			}
		})
	}
}

func TestAttempt_ChildDies(t *testing.T) {
	for _, after := range []time.Duration{5, 20, 49, 50, 51, 55, 70} {
		onHost(t, func(h *harness) {
			h.must(specOf("a"))
			spec := specOf("b")
			spec.ValidateCommand = nil
			done := make(chan error, 1)
			go func() { _, err := h.apply(spec); done <- err }()
			h.wait(after * time.Millisecond)
			h.kill(h.newest(), "SIGKILL")
			<-done
			h.wait(5 * time.Second)
			if h.outage() > time.Second || len(h.alive()) == 0 {
				t.Errorf("after %dms: nobody served for %s", after, h.outage())
			}
			h.wait(10 * time.Second)
			h.must(specOf("c"))
		})
	}
}

func TestFirstStart_RetriesWhileNothingCanBeWritten(t *testing.T) {
	onHost(t, func(h *harness) {
		spec := specOf("a")
		var full atomic.Bool
		full.Store(true)
		write := spec.Bootstrap
		spec.Bootstrap = func(l LaunchInput) ([]byte, error) {
			if full.Load() {
				return nil, unix.ENOSPC
			}
			return write(l)
		}
		h.refused(spec)
		h.wait(time.Minute)
		if got := h.conditions(); !slices.Contains(got, conditionDown) {
			t.Errorf("conditions while nothing can be written: %v", got)
		}
		full.Store(false)
		h.wait(h.config.RestartBackoffMax + time.Second)
		h.expect("0 live")
		if got := h.conditions(); len(got) > 0 {
			t.Errorf("conditions afterwards: %v", got)
		}
	})
}

func TestBackOff_Doubles(t *testing.T) {
	onHost(t, func(h *harness) {
		h.config.RestartLimit, h.config.RestartBackoffMax = 0, 10*time.Second
		h.s.Configure(h.config)
		h.must(specOf("a"))
		var delays []time.Duration
		for range 7 {
			h.kill(h.newest(), "SIGKILL")
			died := time.Now()
			for len(h.alive()) == 0 {
				h.wait(10 * time.Millisecond)
			}
			delays = append(delays, time.Since(died).Round(100*time.Millisecond))
			h.wait(time.Second)
		}
		want := []time.Duration{0, 1e9, 2e9, 4e9, 8e9, 10e9, 10e9}
		if !slices.Equal(delays, want) {
			t.Errorf("started again after %v, should be after %v", delays, want)
		}
		h.wait(forgetExits + time.Second)
		h.kill(h.newest(), "SIGKILL")
		h.wait(100 * time.Millisecond)
		h.expect("0 live")
	})
}

func TestBackOff_GivesUp(t *testing.T) {
	onHost(t, func(h *harness) {
		h.config.RestartBackoffMin, h.config.RestartBackoffMax = time.Second, time.Second
		h.config.RestartLimit, h.config.RestartWindow = 3, time.Minute
		h.s.Configure(h.config)
		h.must(specOf("a"))
		for range 4 {
			h.kill(h.newest(), "SIGKILL")
			h.wait(2 * time.Second)
		}
		err := <-h.ended
		if !errors.Is(err, ErrRestartsExhausted) {
			t.Errorf("Run returned %v", err)
		}
		h.ended <- err
		if !slices.Contains(h.conditions(), ConditionRestartsExhausted) {
			t.Errorf("conditions: %v", h.conditions())
		}
		events := h.board.Events(0)
		if !slices.ContainsFunc(events,
			func(e condition.Event) bool { return e.Kind == condition.KindRestartsExhausted }) {
			t.Errorf("events: %+v", events)
		}
		if log := h.log.String(); !strings.Contains(log, `level=ERROR msg="giving up: Envoy exited`) ||
			!strings.Contains(log, `level=WARN msg="epoch exited" epoch=0 event=epoch-exited cause="ended by SIGKILL"`) {
			t.Errorf("giving up is no error in the log, or an Envoy that was killed no warning:\n%s", log)
		}
		if _, err := h.apply(specOf("b")); !errors.Is(err, errEnded) {
			t.Errorf("a request afterwards: %v", err)
		}
	})
}

func TestBackOff_CountsWithinTheWindow(t *testing.T) {
	onHost(t, func(h *harness) {
		h.config.RestartLimit, h.config.RestartWindow = 2, 10*time.Minute
		h.s.Configure(h.config)
		h.must(specOf("a"))
		for range 10 {
			h.wait(6 * time.Minute)
			h.kill(h.newest(), "SIGKILL")
			h.wait(time.Second)
			h.expect("0 live")
		}
	})
}

func TestFirstStart_IsRetried(t *testing.T) {
	onHost(t, func(h *harness) {
		h.w.behaviour["a"] = behaviour{late: true} // exits as if a port were in use
		refused := h.refused(specOf("a"))
		if refused.Remaining != -1 {
			t.Errorf("%+v", refused)
		}
		h.do(func() { h.w.behaviour["a"] = behaviour{} })
		h.wait(3 * time.Second)
		h.expect("0 live")
	})
	onHost(t, func(h *harness) { // a request with a spec that works replaces the one that fails
		h.w.behaviour["a"] = behaviour{late: true}
		h.refused(specOf("a"))
		if got := h.must(specOf("b")); got.Epoch != 0 || got.Mode != FirstStart {
			t.Errorf("%+v", got)
		}
		h.wait(time.Minute)
		h.expect("0 live")
	})
}

func TestBackOff_OfANewSpec(t *testing.T) {
	onHost(t, func(h *harness) {
		h.config.RestartLimit = 5
		h.s.Configure(h.config)
		h.must(specOf("a"))
		h.w.behaviour["b"] = behaviour{crashWith: "SIGSEGV", crashAt: 300 * time.Millisecond}
		h.must(specOf("b"))
		h.wait(2 * time.Minute)
		if err := <-h.ended; !errors.Is(err, ErrRestartsExhausted) {
			t.Errorf("Run returned %v", err)
		}
		h.ended <- nil
	})
}

func TestRestart_WaitsForAnObstacle(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		taken := errors.New("port 15021 is taken")
		h.obstacle.Store(&taken)
		h.kill(h.newest(), "SIGKILL")
		h.wait(time.Hour)
		standing := h.board.Conditions()
		if len(standing) != 1 || standing[0].Code != conditionDown ||
			!strings.Contains(standing[0].Sentence, taken.Error()) {
			t.Errorf("conditions: %+v", standing)
		}
		if n := len(h.s.Epochs()); n != 1 {
			t.Errorf("%d epochs were started", n)
		}
		// a request starts an epoch although the restart waits for the obstacle to end
		h.must(specOf("b"))
		h.kill(h.newest(), "SIGKILL")
		h.wait(time.Minute)
		h.obstacle.Store(nil)
		h.wait(obstaclePause + time.Second)
		h.expect("0 live")
		if live, _, _ := h.s.Live(); live.SpecDigest != "b" || len(h.board.Conditions()) != 0 {
			t.Errorf("live: %+v; conditions: %+v", live, h.board.Conditions())
		}
	})
}
