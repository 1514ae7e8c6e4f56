package epoch_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/scripts/parts"
)

func TestRealRestartsLoseNothing(t *testing.T) {
	r := newReal(t)
	r.must(r.spec("a"), epoch.Result{Epoch: 0, Previous: -1, Mode: epoch.FirstStart})
	lost := r.load()
	r.must(r.spec("b"), epoch.Result{Epoch: 1, Previous: 0, Mode: epoch.HotRestart})

	// the first request waits until epoch 0 has exited
	for _, bad := range []string{"broken", "port"} {
		for _, validated := range []bool{true, false} {
			spec := r.spec(bad)
			if !validated {
				spec.ValidateCommand = nil
			}
			var refused *epoch.AttemptError
			if _, err := r.s.Apply(r.Context(), epoch.Request{Spec: spec}); !errors.As(err, &refused) ||
				refused.Remaining != 1 {
				t.Errorf("%s, validated %v: %v", bad, validated, err)
			} else {
				t.Log(err)
			}
		}
	}
	r.lostNothing(lost)

	lost = r.load()
	other := r.spec("c")
	// another version, so that a hot restart is impossible; the binary is the same
	other.HotRestartVersion = "99.1"
	r.must(other, epoch.Result{Epoch: 2, Previous: 1, Mode: epoch.SideBySide})
	r.settled("2 live")
	other = r.spec("d")
	other.HotRestartVersion = "99.1"
	r.must(other, epoch.Result{Epoch: 3, Previous: 2, Mode: epoch.HotRestart})
	r.leave() // while epoch 2 still drains
	r.begin()
	r.settled("3 live")
	if got, err := r.s.Apply(r.Context(), epoch.Request{Spec: other, IfChanged: true}); err != nil ||
		got.Mode != epoch.NoNewEpoch {
		t.Errorf("the next agent: %+v, %v", got, err)
	}
	// a version without hot restart, so that a hot restart is impossible, too
	other.HotRestartVersion = ""
	r.must(other, epoch.Result{Epoch: 4, Previous: 3, Mode: epoch.SideBySide})
	r.settled("4 live")
	r.lostNothing(lost)
	r.stop()
}

func TestRealFailures(t *testing.T) {
	r := newReal(t)
	r.must(r.spec("a"), epoch.Result{Epoch: 0, Previous: -1, Mode: epoch.FirstStart})
	kill := func(pid int, signal syscall.Signal) {
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
	r.must(r.spec("b"), epoch.Result{Epoch: 1, Previous: 0, Mode: epoch.HotRestart})
	victim, began := r.live(), time.Now()
	kill(victim.PID, syscall.SIGKILL) // while epoch 0 still drains; it does not listen any more
	parts.Eventually(t, time.Minute, "epoch 1 is back", func() bool {
		live := r.live()
		return live.Number == 1 && live.PID != victim.PID
	})
	t.Logf("back after %s", time.Since(began))
	if response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", r.port)); err != nil {
		t.Error(err)
	} else {
		_ = response.Body.Close()
	}
	r.settled("1 live")

	lost := r.load()
	r.must(r.spec("c"), epoch.Result{Epoch: 2, Previous: 1, Mode: epoch.HotRestart})
	for _, e := range r.s.Epochs() {
		if e.State == epoch.StateDraining {
			parts.PauseProcess(t, e.PID) // a paused Envoy cannot exit when its child requests it
		}
	}
	r.settled("2 live")
	r.lostNothing(lost)

	parts.PauseProcess(t, r.live().PID)
	// the agent resumes epoch 2 with SIGCONT
	r.must(r.spec("d"), epoch.Result{Epoch: 3, Previous: 2, Mode: epoch.HotRestart})
	r.settled("3 live")

	r.leave()
	victim = r.live()
	kill(victim.PID, syscall.SIGKILL)
	parts.Eventually(t, time.Minute, "the keeper has seen it end", func() bool {
		processes, err := r.link.Connection().Client.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(processes,
			func(p keeper.Process) bool { return p.PID == victim.PID && p.Exit != nil })
	})
	began = time.Now()
	r.begin()
	parts.Eventually(t, time.Minute, "an Envoy serves",
		func() bool { return r.live().State == epoch.StateLive })
	t.Logf("live %s after the next agent began: %+v", time.Since(began), r.live())
	if _, err := r.s.Apply(r.Context(), epoch.Request{Spec: r.spec("e")}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.live().BootstrapPath); err != nil {
		t.Error(err)
	}
	r.stop()
}
