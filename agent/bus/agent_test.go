package bus

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
)

// agent is a fake Backend.
type agent struct {
	board *condition.Registry

	mu       sync.Mutex
	state    api.Status
	figures  Epoch // resource usage of the epoch whose ID is "a"
	changed  chan struct{}
	asked    []string // received requests
	measured int
	looks    int
	reloads  uint64
	hold     chan struct{} // if set, operations that change the agent block until it is closed
	err      error         // result of every change
	problems []string
}

func number(n int) *int { return &n }

// someTime is a time with a fractional second.
var someTime = time.Date(2026, 3, 4, 5, 6, 7, 890123000, time.UTC)

func newAgent() *agent {
	return &agent{
		board: condition.NewRegistry(), changed: make(chan struct{}),
		figures: Epoch{Connections: 7, MemoryBytes: 1 << 20},
		state: api.Status{
			Version: "1.2.3", State: api.StateRunning, Ready: true,
			Envoy: api.EnvoyStatus{Live: true, Version: "1.40.0"}, CurrentEpoch: number(0),
			ConfigFiles: []string{"/etc/outrider/outrider.toml"}, ConfigHash: "abc",
			Discovery: api.Discovery{State: "embedded"},
			Epochs: []Epoch{{ID: "a", Number: 0, State: "live", PID: 4711, Reason: "start",
				BootstrapPath: "/run/outrider/envoy/envoy-rev0.json",
				Started:       someTime, LiveSince: someTime.Add(time.Second)}},
			Identities: []api.Identity{{Name: "file-cert:web", Source: "files",
				SPIFFEID: "spiffe://example.org/web", NotAfter: someTime}},
		},
	}
}

// change modifies the state and signals Changed.
func (a *agent) change(change func(*api.Status)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.Epochs = slices.Clone(a.state.Epochs)
	change(&a.state)
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) State(context.Context) api.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looks++
	state := a.state
	state.Conditions = a.board.Conditions()
	return state
}

func (a *agent) EpochsWithResourceUsage(context.Context) []Epoch {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.measured++
	measured := a.figures
	measured.ID = "a"
	return []Epoch{measured}
}

func (a *agent) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

func (a *agent) do(ctx context.Context, what string) error {
	a.mu.Lock()
	a.asked = append(a.asked, what)
	hold, err := a.hold, a.err
	a.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (a *agent) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

func (a *agent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// BeginReload publishes the end of the reload before it returns the ID, so the server receives the
// end of a reload whose ID it does not know yet.
func (a *agent) BeginReload(ctx context.Context, ifChanged bool) (uint64, error) {
	if err := a.do(ctx, "reload "+strconv.FormatBool(ifChanged)); err != nil {
		return 0, err
	}
	a.mu.Lock()
	a.reloads++
	id := a.reloads
	a.mu.Unlock()
	a.board.Publish(condition.Event{Kind: condition.KindReloadFinished, Epoch: number(1),
		Fields: map[string]string{
			"id": strconv.FormatUint(id, 10), "outcome": "restarted",
			"pending": "bus.enabled dns.enabled"}})
	return id, nil
}

func (a *agent) BeginDrain(ctx context.Context) error { return a.do(ctx, "drain") }

func (a *agent) Undrain(
	ctx context.Context, _ func(api.Progress),
) (result api.UndrainResult, err error) {
	return result, a.do(ctx, "undrain")
}

func (a *agent) AbortEpoch(ctx context.Context, number int) error {
	return a.do(ctx, "abort "+strconv.Itoa(number))
}

func (a *agent) CheckConfig(ctx context.Context, path string) ([]string, error) {
	return a.problems, a.do(ctx, "check "+path)
}

func (a *agent) DumpConfig(ctx context.Context) (string, error) {
	return "[node]\nid = \"a\x00b\xff\"\n", a.do(ctx, "dump")
}

func (a *agent) SetLogLevels(
	ctx context.Context, levels api.LogLevels,
) (result api.LogLevels, err error) {
	return result, a.do(ctx, fmt.Sprintf("level %+v", levels))
}

// start runs a server for an agent until the test ends or the returned function is called.
func (a *agent) start(t *testing.T, d *daemon) (*Server, func()) {
	t.Helper()
	return a.startAs(t, d, "")
}

func (a *agent) startAs(t *testing.T, d *daemon, instance string) (*Server, func()) {
	t.Helper()
	server, err := New(Options{Address: d.address(), Instance: instance, Unit: "outrider.service",
		Backend: a, Conditions: a.board,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the part ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return server, stop
}

// running starts a bus with an agent.
func running(t *testing.T) (*daemon, *agent) {
	t.Helper()
	d, a := startDaemon(t), newAgent()
	server, _ := a.start(t, d)
	await(t, server.Ready(), "the name is taken")
	return d, a
}

func await[T any](t *testing.T, channel <-chan T, what string) T {
	t.Helper()
	select {
	case value := <-channel:
		return value
	case <-time.After(testTime):
		t.Fatalf("not within %s: %s", testTime, what)
		panic("unreachable")
	}
}

// serveChanges returns a channel with all signals of the agent, in order.
func serveChanges(t *testing.T, d *daemon) <-chan *dbus.Signal {
	t.Helper()
	conn := d.connect()
	signals := make(chan *dbus.Signal, 1000)
	conn.Signal(signals)
	if err := conn.AddMatchSignal(dbus.WithMatchSender(wellKnownName)); err != nil {
		t.Fatal(err)
	}
	return signals
}

// next returns the next signal with the given name.
func next(t *testing.T, signals <-chan *dbus.Signal, name string) *dbus.Signal {
	t.Helper()
	for {
		s := await(t, signals, name)
		if s.Name == name {
			return s
		}
	}
}
