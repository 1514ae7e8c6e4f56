package epoch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is one host with an agent, which a test can replace.
type harness struct {
	t        *testing.T
	w        *world
	s        *Supervisor
	board    *condition.Registry
	dir      string
	config   config.Envoy
	obstacle atomic.Pointer[error]
	cancel   context.CancelFunc
	ended    chan error
	log      parts.SyncBuffer
}

// defaults returns the default values of the keys of [envoy] that the supervisor uses.
func defaults(folder string) config.Envoy {
	return config.Envoy{ConfigDir: folder, RestartBackoffMin: time.Second,
		RestartBackoffMax: time.Minute, RestartLimit: 10, RestartWindow: 10 * time.Minute,
		TerminationDrainDuration: 5 * time.Second, MinimumDrainDuration: 5 * time.Second,
		MaximumDrainDuration: time.Minute}
}

// onHost runs a test in a synctest bubble with a running agent. At the end it checks that the fake
// host (world) recorded no fault.
func onHost(t *testing.T, test func(h *harness)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &harness{t: t, w: newWorld(t), board: condition.NewRegistry(), dir: dir,
			config: defaults(dir)}
		h.begin()
		test(h)
		h.leave()
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		for _, fault := range h.w.faults {
			t.Error(fault)
		}
	})
}

// begin starts an agent.
func (h *harness) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	out := io.Discard
	if testing.Verbose() {
		out = h.t.Output()
	}
	out = io.MultiWriter(out, &h.log)
	h.s = New(Options{
		Admin: func(address string) Admin { return fakeAdmin{h.w, address} }, Conditions: h.board,
		Logger: slog.New(slog.NewTextHandler(out, nil)), Config: h.config,
		AwaitExit: h.w.awaitExit, StartObstacle: func() error {
			if obstacle := h.obstacle.Load(); obstacle != nil {
				return *obstacle
			}
			return nil
		},
	})
	h.cancel, h.ended = cancel, make(chan error, 1)
	s, ended, keeper := h.s, h.ended, h.w.connect()
	go func() { ended <- s.Run(ctx, keeper) }()
	synctest.Wait()
}

// inspection is an event with which a test reads the state of the state machine.
type inspection struct {
	look func(*state)
	done chan struct{}
}

func (i inspection) apply(m *machine) { i.look(&m.state); close(i.done) }

// inspect calls look with the current state of the state machine.
func (h *harness) inspect(look func(*state)) {
	done := make(chan struct{})
	h.s.executor.post(inspection{look, done})
	<-done
}

// leave ends the agent as kill -9 does; its Envoys continue to run.
func (h *harness) leave() {
	h.cancel()
	<-h.ended
	h.w.mu.Lock()
	h.w.keeper = nil
	h.w.mu.Unlock()
}

func specOf(hash string) *Spec {
	drain, shutdown := 5*time.Second, 8*time.Second
	return &Spec{
		Digest:    hash,
		Bootstrap: func(l LaunchInput) ([]byte, error) { return fmt.Appendf(nil, "%s %d", hash, l.Number), nil },
		Command: func(l LaunchInput) (Command, error) {
			return Command{Path: "envoy", Args: []string{hash, drain.String(), shutdown.String()}}, nil
		},
		ValidateCommand: func(LaunchInput) (Command, error) {
			return Command{Path: "envoy",
				Args: []string{hash}}, nil
		},
		AdminAddress: func(l LaunchInput) string {
			return fmt.Sprintf("admin-%d.sock",
				l.Number)
		},
		HotRestartVersion: "11.104", LiveTimeout: 20 * time.Second, DrainTime: drain, ParentShutdownTime: shutdown,
	}
}

func (h *harness) apply(spec *Spec) (Result, error) {
	return h.s.Apply(h.t.Context(), Request{Spec: spec, Reason: "test"})
}

// must applies a spec and fails the test if it is refused.
func (h *harness) must(spec *Spec) Result {
	h.t.Helper()
	result, err := h.apply(spec)
	if err != nil {
		h.t.Fatalf("apply %q: %v", spec.Digest, err)
	}
	return result
}

// refused applies a spec, fails the test if it is accepted, and returns the error.
func (h *harness) refused(spec *Spec) *AttemptError {
	h.t.Helper()
	result, err := h.apply(spec)
	var refused *AttemptError
	if !errors.As(err, &refused) {
		h.t.Fatalf("apply %q: %+v, %v; it should have been refused", spec.Digest, result, err)
	}
	return refused
}

// wait advances the time and lets all goroutines settle.
func (h *harness) wait(duration time.Duration) {
	time.Sleep(duration) //house:sleep of the bubble's clock
	synctest.Wait()
}

// alive returns the Envoys that run, oldest first.
func (h *harness) alive() []*fakeEnvoy {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.w.all), func(e *fakeEnvoy) bool { return e.exit != nil })
}

// newest returns the Envoy that was started last.
func (h *harness) newest() *fakeEnvoy {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.w.all[len(h.w.all)-1]
}

// kill makes an Envoy exit by a signal, without a request of the supervisor.
func (h *harness) kill(e *fakeEnvoy, signal string) {
	h.w.mu.Lock()
	h.w.end(e, -1, signal)
	h.w.mu.Unlock()
	synctest.Wait()
}

func (h *harness) do(f func()) {
	h.w.mu.Lock()
	f()
	h.w.mu.Unlock()
	synctest.Wait()
}

// state reports whether an Envoy accepts connections, and whether its health checks fail.
func (h *harness) state(e *fakeEnvoy) (listening, unhealthy bool) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return e.listening, e.unhealthy
}

// outage returns the total time in which no Envoy served.
func (h *harness) outage() time.Duration {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	var sum time.Duration
	for _, o := range h.w.outages {
		sum += o
	}
	if !h.w.down.IsZero() {
		sum += time.Since(h.w.down)
	}
	return sum
}

func (h *harness) conditions() []string {
	var codes []string
	for _, c := range h.board.Conditions() {
		codes = append(codes, c.Code)
	}
	return codes
}

// expect compares the running epochs with a text such as "1 live, 0 draining".
func (h *harness) expect(want string) {
	h.t.Helper()
	var got []string
	for _, e := range h.s.Epochs() {
		if e.State != StateExited {
			got = append(got, fmt.Sprintf("%d %s", e.Number, e.State))
		}
	}
	slices.Reverse(got)
	if text := strings.Join(got, ", "); text != want {
		h.t.Errorf("epochs are %q, should be %q", text, want)
	}
}

func (h *harness) files() []string {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
