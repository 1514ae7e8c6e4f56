package epoch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// hangKeeper makes the keeper block all requests until resume is called.
func (h *harness) hangKeeper() (resume func()) {
	hung := make(chan struct{})
	h.do(func() { h.w.hungKeeper = hung })
	return func() {
		h.do(func() { h.w.hungKeeper = nil })
		close(hung)
	}
}

// responsive checks that readers, the watchdog and callers are not blocked. It takes no time,
// because in a synctest bubble the clock does not advance while a goroutine can run.
func (h *harness) responsive() {
	h.t.Helper()
	begun := time.Now()
	if err := h.s.Ping(h.t.Context()); err != nil {
		h.t.Error(err)
	}
	if live, _, ok := h.s.Live(); !ok || len(h.s.Epochs()) == 0 {
		h.t.Errorf("live: %+v, epochs: %+v", live, h.s.Epochs())
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	cancel()
	if _, err := h.s.Apply(ctx, Request{Spec: specOf("withdrawn")}); !errors.Is(err, context.Canceled) {
		h.t.Errorf("a caller that has left waits: %v", err)
	}
	if took := time.Since(begun); took != 0 {
		h.t.Errorf("readers and callers waited %s", took)
	}
}

// awaits applies a spec and checks that the caller is notified at once of the reason why the
// request waits (want). It returns the channel of the call's result.
func (h *harness) awaits(hash, want string) <-chan error {
	h.t.Helper()
	said, done := make(chan string, 100), make(chan error, 1)
	s := h.s
	go func() {
		_, err := s.Apply(h.t.Context(), Request{Spec: specOf(hash),
			OnWait: func(_ time.Time, why string) { said <- why }})
		done <- err
	}()
	h.wait(0)
	select {
	case why := <-said:
		if !strings.Contains(why, want) {
			h.t.Errorf("the request waits for %q, want %q", why, want)
		}
	default:
		h.t.Error("the request does not know what it waits for")
	}
	return done
}

func TestHang_KeeperBlocksNobody(t *testing.T) {
	for name, test := range map[string]struct {
		validated bool
		after     time.Duration // delay after the first request until the keeper hangs
		want      string
	}{
		"while it validates":        {true, 0, "preparing epoch 1"},
		"while it starts a process": {false, 0, "the keeper to start epoch 1"},
		"while the process starts":  {false, 10 * time.Millisecond, "starting epoch 1"},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				spec := specOf("b")
				if !test.validated {
					spec.ValidateCommand = nil
				}
				time.AfterFunc(time.Millisecond, func() { _, _ = h.apply(spec) })
				h.wait(test.after)
				resume := h.hangKeeper()
				h.wait(2 * time.Millisecond)
				h.responsive()
				done := h.awaits("c", test.want)
				h.wait(time.Second)
				h.responsive()
				resume()
				if err := <-done; err != nil {
					t.Error(err)
				}
				h.must(specOf("d"))
				if h.outage() != 0 {
					t.Errorf("nobody served for %s", h.outage())
				}
			})
		})
	}
}

func TestHang_KeeperDuringAnAdoption(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.lose()
		resume := h.hangKeeper()
		ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
		defer cancel()
		if err := h.s.setKeeper(ctx, h.w.connect()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's deadline was not honoured: %v", err)
		}
		h.responsive()
		resume()
		h.wait(0)
		h.must(specOf("b"))
	})
}

func TestHang_AdminBlocksNobody(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.hang(h.newest())
		ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
		defer cancel()
		if err := h.s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's deadline was not honoured: %v", err)
		}
		h.responsive()
		go func() { _, _ = h.apply(specOf("b")) }()
		h.wait(0)
		h.responsive()
		if err := <-h.awaits("c", "preparing epoch 1"); err != nil {
			t.Error(err)
		}
	})
}

// A file system that hangs while a bootstrap file is written blocks only the start that needs this
// file.
func TestHang_BootstrapBlocksNobody(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		hung := make(chan struct{})
		spec := specOf("b")
		spec.Bootstrap = func(LaunchInput) ([]byte, error) { <-hung; return []byte("b"), nil }
		go func() { _, _ = h.apply(spec) }()
		h.wait(time.Second)
		h.responsive()
		done := h.awaits("c", "preparing epoch 1")
		if err := h.s.Abort(h.t.Context(), 1); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		close(hung)
	})
}
