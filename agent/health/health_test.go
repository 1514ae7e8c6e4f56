package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// proxy is a Proxy whose state a test sets.
type proxy struct {
	mu      sync.Mutex
	ready   bool
	drains  bool
	changed chan struct{}
}

func (p *proxy) become(ready, drains bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready, p.drains = ready, drains
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *proxy) WaitReady(ctx context.Context, _ func(string)) string {
	for {
		changed := p.Changed()
		if ready, _ := p.ReadyContext(ctx); ready {
			return ""
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "not ready"
		}
	}
}

func (p *proxy) ReadyContext(context.Context) (bool, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready && !p.drains, "epoch 0 is starting"
}

func (p *proxy) Draining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drains
}

func (p *proxy) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// world is a running Checker whose probe checks the unit app.service.
type world struct {
	*Checker
	*proxy
	board  *condition.Registry
	start  time.Time
	state  atomic.Value // ActiveState of the unit
	checks atomic.Int32

	guard   sync.Mutex
	reports []string // each begins with the seconds since start
}

// during runs a test with a Checker and a fake clock (synctest).
func during(t *testing.T, s Settings, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{proxy: &proxy{ready: true, changed: make(chan struct{})},
			board: condition.NewRegistry(), start: time.Now()}
		w.state.Store("active")
		w.Checker = New(Options{Settings: s, Proxy: w.proxy, Conditions: w.board,
			Logger: slog.New(slog.DiscardHandler),
			UnitState: func(ctx context.Context, unit string) (string, error) {
				w.checks.Add(1)
				state, _ := w.state.Load().(string)
				if state == "hangs" {
					<-ctx.Done()
					return "", ctx.Err()
				}
				return state, nil
			},
			OnChange: func(healthy bool, reason string) {
				w.guard.Lock()
				defer w.guard.Unlock()
				w.reports = append(w.reports, strings.TrimSpace(fmt.Sprintf("%v %v %s",
					time.Since(w.start).Seconds(), healthy, reason)))
			}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		synctest.Wait()
		test(w)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// after sleeps until a number of seconds after start.
func (w *world) after(seconds float64) {
	time.Sleep(time.Until(w.start.Add(time.Duration(seconds * float64(time.Second)))))
	synctest.Wait()
}

func (w *world) expect(t *testing.T, reports ...string) {
	t.Helper()
	w.guard.Lock()
	defer w.guard.Unlock()
	if got, want := strings.Join(w.reports, "; "), strings.Join(reports, "; "); got != want {
		t.Errorf("reports %q, want %q", got, want)
	}
}

func unit() Settings {
	return Settings{Enabled: true, Health: config.Health{Unit: "app.service",
		InitialDelay: 2 * time.Second, Period: 10 * time.Second, Timeout: time.Second,
		SuccessThreshold: 2, FailureThreshold: 3}}
}

func TestHealth_Thresholds(t *testing.T) {
	during(t, unit(), func(w *world) {
		w.after(1.9)
		if w.checks.Load() != 0 {
			t.Error("checked during the initial delay")
		}
		w.after(3)
		if s := w.Status(); s.State != StateUnknown || w.checks.Load() != 1 {
			t.Errorf("%+v after %d checks", s, w.checks.Load())
		}
		w.after(15) // checks at 2 and 12 s
		w.expect(t, "12 true")
		w.state.Store("failed")
		w.after(35) // checks at 22 and 32 s
		w.state.Store("active")
		w.after(45) // the check at 42 s resets the failure count
		w.state.Store("failed")
		w.after(71) // checks at 52 and 62 s
		w.expect(t, "12 true")
		if s := w.Status(); s.State != StateHealthy || len(w.board.Conditions()) != 0 {
			t.Errorf("%+v, %v", s, w.board.Conditions())
		}
		// checks at 72, 82 and 92 s: the first reaches the threshold, and only it is reported
		w.after(100)
		w.expect(t, "12 true", "72 false app.service is failed")
		if s := w.Status(); s.State != StateUnhealthy || len(w.board.Conditions()) != 1 {
			t.Errorf("%+v, %v", s, w.board.Conditions())
		}
		w.state.Store("reloading")
		w.after(125) // checks at 102 and 112 s
		w.expect(t, "12 true", "72 false app.service is failed", "112 true")
		if len(w.board.Conditions()) != 0 {
			t.Errorf("%v", w.board.Conditions())
		}
	})
}

func TestHealth_ProxyCounts(t *testing.T) {
	s := unit()
	s.InitialDelay, s.SuccessThreshold = 0, 1
	during(t, s, func(w *world) {
		w.become(true, true)
		w.after(4)
		w.expect(t, "0 true", "0 false the proxy drains")
		if len(w.board.Conditions()) != 0 {
			t.Errorf("%v", w.board.Conditions())
		}
		w.become(true, false) // the end of the drain triggers a check at once
		w.after(5)
		w.become(false, false)
		w.after(35) // checks at 14, 24 and 34 s
		w.expect(t, "0 true", "0 false the proxy drains", "4 true",
			"34 false the proxy is not ready: epoch 0 is starting")
	})
}

// If the probe fails after a drain, its reason replaces that of the drain.
func TestHealth_UndrainedWhileTheProbeFails(t *testing.T) {
	s := unit()
	s.InitialDelay, s.SuccessThreshold, s.FailureThreshold = 0, 1, 1
	during(t, s, func(w *world) {
		w.become(true, true)
		w.after(4)
		w.state.Store("failed")
		w.become(true, false)
		w.after(20)
		w.expect(t, "0 true", "0 false the proxy drains", "4 false app.service is failed")
		if len(w.board.Conditions()) != 1 {
			t.Errorf("%v", w.board.Conditions())
		}
	})
}

func TestHealth_NothingIsReportedBeforeTheProxyIsReady(t *testing.T) {
	s := unit()
	s.InitialDelay, s.SuccessThreshold = 0, 1
	during(t, Settings{}, func(w *world) {
		w.become(false, false)
		w.Configure(s)
		w.after(1000)
		if w.checks.Load() > 0 || w.Status().State != StateUnknown {
			t.Errorf("%+v after %d checks", w.Status(), w.checks.Load())
		}
		w.expect(t)
		w.become(true, false)
		w.after(1000)
		w.expect(t, "1000 true")
	})
}

func TestHealth_TimeoutAndConfigure(t *testing.T) {
	s := unit()
	s.InitialDelay, s.SuccessThreshold, s.FailureThreshold = 0, 1, 1
	during(t, s, func(w *world) {
		w.state.Store("hangs")
		w.after(15) // the check at 10 s times out
		w.expect(t, "0 true", "11 false the health probe got no answer within 1s")
		s.Unit = ""
		w.Configure(s) // without a probe, only the proxy's readiness is checked
		w.after(15)
		w.expect(t, "0 true", "11 false the health probe got no answer within 1s", "15 true")
		w.Configure(s) // equal settings have no effect
		w.after(20)
		w.Configure(Settings{})
		w.after(50)
		w.expect(t, "0 true", "11 false the health probe got no answer within 1s", "15 true")
		if w.Status().State != StateOff {
			t.Errorf("%+v", w.Status())
		}
	})
}

// MarkLeaving lasts until CancelLeaving. New settings in between report nothing, because the
// control plane would send traffic to the workload again.
func TestHealth_LeaveLastsUntilReturn(t *testing.T) {
	s := unit()
	s.InitialDelay, s.SuccessThreshold = 0, 1
	during(t, s, func(w *world) {
		w.after(1)
		w.MarkLeaving(ReasonLeavingMesh)
		w.MarkLeaving(ReasonLeavingMesh)
		w.after(100)
		w.expect(t, "0 true", "1 false the host leaves the mesh")
		w.CancelLeaving()
		w.after(101)
		w.expect(t, "0 true", "1 false the host leaves the mesh", "100 true")
		w.MarkLeaving(ReasonLeavingMesh)
		w.Configure(Settings{})
		w.CancelLeaving()
		w.after(200)
		w.expect(t, "0 true", "1 false the host leaves the mesh", "100 true",
			"101 false the host leaves the mesh")
		if w.Status().State != StateOff {
			t.Errorf("%+v", w.Status())
		}
	})
}

func TestHealth_StopIsFinal(t *testing.T) {
	s := unit()
	s.InitialDelay, s.SuccessThreshold = 0, 1
	during(t, s, func(w *world) {
		w.after(1)
		w.MarkLeaving(ReasonStopping)
		w.MarkLeaving(ReasonLeavingMesh)
		w.CancelLeaving()
		w.after(100)
		w.expect(t, "0 true", "1 false the proxy is stopping")
	})
}

func TestHealth_ProbesOfServers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/ok": 204, "/moved": 304, "/broken": 503}[r.URL.Path])
	}))
	defer server.Close()
	c := New(Options{Conditions: condition.NewRegistry(),
		UnitState: func(context.Context, string) (string, error) {
			return "", errors.New("no bus")
		}, Exec: func(_ context.Context, arguments []string) error {
			return fmt.Errorf("run %q", arguments)
		}})
	for _, test := range []struct {
		probe config.Health
		want  string
	}{
		{config.Health{HTTP: server.URL + "/ok"}, ""},
		{config.Health{HTTP: server.URL + "/moved"}, ""},
		{config.Health{HTTP: server.URL + "/broken"}, "the application answered 503"},
		{config.Health{TCP: server.Listener.Addr().String()}, ""},
		{config.Health{GRPC: "127.0.0.1:1"}, "refused"},
		{config.Health{Exec: []string{"false"}}, `run ["false"]`},
		{config.Health{Unit: "a.service"}, "no bus"}, {config.Health{}, ""},
	} {
		err := c.probe(t.Context(), test.probe)
		if (err == nil) != (test.want == "") ||
			err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test.probe, err)
		}
	}
}
