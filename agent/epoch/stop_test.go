package epoch

import (
	"errors"
	"testing"
	"time"
)

// stopIn stops all epochs and returns the duration of the stop.
func (h *harness) stopIn(now bool) time.Duration {
	h.t.Helper()
	begun := time.Now()
	if err := h.s.Stop(h.t.Context(), h.config, now); err != nil {
		h.t.Errorf("stop: %v", err)
	}
	took := time.Since(begun)
	err := <-h.ended
	h.ended <- err
	if err != nil {
		h.t.Errorf("Run returned %v", err)
	}
	if n := len(h.alive()); n != 0 {
		h.t.Errorf("%d Envoys left", n)
	}
	if len(h.files()) != 0 || h.w.cleaned != 1 {
		h.t.Errorf("files left: %v; cleaned up %d times", h.files(), h.w.cleaned)
	}
	return took.Round(100 * time.Millisecond)
}

func TestStop(t *testing.T) {
	for name, test := range map[string]struct {
		now        bool
		exitOnZero bool
		before     func(h *harness, e *fakeEnvoy)
		during     func(h *harness, e *fakeEnvoy)
		want       time.Duration
	}{
		"nothing in flight": {want: 6 * time.Second},
		"now":               {now: true, want: 0},
		"a request in flight": {want: 11 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.requests = 1 })
			h.wait(10 * time.Second)
			h.do(func() { e.requests = 0 })
		}},
		"a tunnel": {want: 60 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.tunnels = 1 })
		}},
		"idle connections": {want: 6 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.idle = 10 })
		}},
		"exit on zero": {exitOnZero: true, want: 6 * time.Second},
		"exit on zero, with connections": {exitOnZero: true, want: 21 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.idle = 3 })
			h.wait(20 * time.Second)
			if listening, unhealthy := h.state(e); !listening || !unhealthy {
				h.t.Error("listeners closed while connections were left")
			}
			h.do(func() { e.idle = 0 })
		}},
		"after a drain": {want: time.Second, before: func(h *harness, e *fakeEnvoy) {
			if err := h.s.Drain(h.t.Context()); err != nil {
				h.t.Error(err)
			}
			h.wait(6 * time.Second)
		}},
		"the order": {want: 6 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.wait(4900 * time.Millisecond)
			if listening, unhealthy := h.state(e); !listening || !unhealthy {
				h.t.Error("within termination_drain_duration connections are taken and health checks fail")
			}
			h.wait(200 * time.Millisecond)
			if listening, _ := h.state(e); listening {
				h.t.Error("then listeners close at once")
			}
		}},
		"admin gone": {want: 5500 * time.Millisecond, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.admin = false })
		}},
		"admin gone, a request in flight": {want: 12500 * time.Millisecond, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.admin = false })
			h.wait(2 * time.Second)
			h.do(func() { e.requests = 1 })
			h.wait(2900 * time.Millisecond)
			if listening, _ := h.state(e); !listening {
				h.t.Error("within termination_drain_duration connections are taken")
			}
			h.wait(200 * time.Millisecond)
			if listening, _ := h.state(e); listening {
				h.t.Error("connections are taken while those that are left are counted")
			}
			h.wait(6800 * time.Millisecond)
			h.do(func() { e.requests = 0 })
		}},
		"admin gone, an idle connection": {want: 60 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.admin, e.idle = false, 1 })
		}},
		"admin goes while connections are awaited": {exitOnZero: true, want: 28500 * time.Millisecond, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.idle = 1 })
			h.wait(20 * time.Second)
			h.do(func() { e.admin = false })
			h.wait(7800 * time.Millisecond)
			if listening, _ := h.state(e); listening {
				h.t.Error("connections are taken while those that are left are counted")
			}
			h.do(func() { e.idle = 0 })
		}},
		"Envoy exits": {want: 2 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.wait(2 * time.Second)
			h.kill(e, "SIGKILL")
		}},
		"Envoy hangs": {want: 18 * time.Second, before: func(h *harness, e *fakeEnvoy) {
			h.w.hang(e)
		}},
		"Envoy hangs, with connections": {want: 18 * time.Second, before: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.requests, e.idle = 1, 1 })
			h.w.hang(e)
		}},
		"Envoy was stopped, with a request in flight": {want: 12 * time.Second, before: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.stopped, e.requests = true, 1 })
		}, during: func(h *harness, e *fakeEnvoy) {
			h.wait(11 * time.Second)
			h.do(func() { e.requests = 0 })
		}},
		"a second one": {want: 2 * time.Second, during: func(h *harness, e *fakeEnvoy) {
			h.do(func() { e.requests = 1 })
			h.wait(2 * time.Second)
			if err := h.s.Stop(h.t.Context(), h.config, true); err != nil {
				h.t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				if test.before != nil {
					test.before(h, h.newest())
				}
				if test.during != nil {
					go test.during(h, h.newest())
				}
				h.config.ExitOnZeroActiveConnections = test.exitOnZero
				if took := h.stopIn(test.now); took < test.want || took > test.want+200*time.Millisecond {
					t.Errorf("took %s, should take %s", took, test.want)
				}
			})
		})
	}
}

func TestStopInTheOverlap(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(specOf("b"))
		old := h.alive()[0]
		h.do(func() { old.requests = 1 })
		go func() {
			h.wait(7 * time.Second)
			h.do(func() { old.requests = 0 })
		}()
		if took := h.stopIn(false); took < 7*time.Second || took > 8100*time.Millisecond {
			t.Errorf("took %s: the old epoch's last request ended after 7s", took)
		}
		if old.exit.Signal != "" {
			t.Errorf("the old one: %+v", old.exit)
		}
	})
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.must(version("b", "12.1"))
		if took := h.stopIn(false); took > 7*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestStopDuringAStart(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		h.w.behaviour["b"] = behaviour{never: true}
		done := make(chan error, 2)
		go func() { _, err := h.apply(specOf("b")); done <- err }()
		h.wait(time.Second)
		go func() { _, err := h.apply(specOf("c")); done <- err }()
		h.wait(time.Second)
		if took := h.stopIn(false); took > 7*time.Second {
			t.Errorf("took %s", took)
		}
		for range 2 {
			if err := <-done; !errors.Is(err, ErrStopping) {
				t.Errorf("what was asked for: %v", err)
			}
		}
		if h.outage() > 2*time.Second {
			t.Errorf("listeners closed %s before the end", h.outage())
		}
	})
}

// A stop waits for the requests in flight of an epoch that serves without an admin interface:
// either a starting epoch, which the stop ends, has taken it over, or a failed epoch has, and the
// repair failed as well.
func TestStopWhenAdminIsLost(t *testing.T) {
	for name, bad := range loses {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *harness) {
				h.must(specOf("a"))
				old := h.newest()
				h.do(func() { h.w.behaviour["a"], h.w.behaviour["bad"] = behaviour{late: true}, bad })
				go func() { _, _ = h.apply(specOf("bad")) }()
				h.wait(2 * time.Second)
				go func() {
					h.wait(2 * time.Second)
					h.do(func() { old.requests = 1 })
					h.wait(8 * time.Second)
					h.do(func() { old.requests = 0 })
				}()
				if took := h.stopIn(false); took < 10*time.Second || took > 11*time.Second {
					t.Errorf("took %s, the request ended after 10 s", took)
				}
				if old.exit.Signal != "" {
					t.Errorf("%+v", old.exit)
				}
			})
		})
	}
}

// A stop waits for the connections of an epoch without admin interface. The keeper counts them,
// also after it re-executes itself during the stop.
func TestStopWithoutAdminWhileTheKeeperReplacesItself(t *testing.T) {
	onHost(t, func(h *harness) {
		h.must(specOf("a"))
		old := h.newest()
		h.w.behaviour["bad"] = loses["never live"]
		go func() { _, _ = h.apply(specOf("bad")) }()
		h.wait(2 * time.Second)
		h.do(func() { old.requests = 1 })
		go func() {
			h.wait(8 * time.Second)
			h.w.lose()
			h.wait(100 * time.Millisecond)
			if err := h.s.setKeeper(h.t.Context(), h.w.connect()); err != nil {
				t.Error(err)
			}
			h.wait(4 * time.Second)
			h.do(func() { old.requests = 0 })
		}()
		if took := h.stopIn(false); took < 12*time.Second || took > 13*time.Second || old.exit.Signal != "" {
			t.Errorf("took %s, the request ended after 12 s; %+v", took, old.exit)
		}
	})
}

func TestStopWithoutEnvoy(t *testing.T) {
	onHost(t, func(h *harness) {
		if took := h.stopIn(false); took != 0 {
			t.Errorf("took %s", took)
		}
	})
}

func TestDrain_IsPersistent(t *testing.T) {
	onHost(t, func(h *harness) {
		if err := h.s.Drain(h.t.Context()); !errors.Is(err, errNotLive) {
			t.Errorf("with nothing to drain: %v", err)
		}
		if _, err := h.s.Undrain(h.t.Context(), nil); !errors.Is(err, errNotLive) {
			t.Errorf("with nothing to undrain: %v", err)
		}
		h.must(specOf("a"))
		if err := h.s.Drain(h.t.Context()); err != nil {
			t.Fatal(err)
		}
		h.wait(6 * time.Second)
		if listening, unhealthy := h.state(h.newest()); listening || !unhealthy {
			t.Error("it does not drain")
		}
		h.leave()
		h.begin()
		h.must(specOf("b"))
		h.wait(6 * time.Second)
		if listening, unhealthy := h.state(h.newest()); listening || !unhealthy {
			t.Error("the next one does not drain, after an agent that was told to was replaced")
		}
		if _, err := h.s.Undrain(h.t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		h.must(specOf("c"))
		h.wait(6 * time.Second)
		if listening, unhealthy := h.state(h.newest()); !listening || unhealthy {
			t.Error("undrained, and drains")
		}
	})
}
