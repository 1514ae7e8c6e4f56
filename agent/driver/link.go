// Package driver connects the supervisor to its Envoys. It implements epoch.Keeper over the
// keeper's protocol, with reconnection, and epoch.Admin over Envoy's admin interface, and it
// forwards Envoy's log.
package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/part"
)

// Link is the agent's connection to the keeper. It reconnects when the connection is lost.
type Link struct {
	part.Readiness
	options Options

	forward    atomic.Bool // log Envoy's lines
	supervisor Supervisor

	mu      sync.Mutex
	current *Connection
}

// Options configures a Link.
type Options struct {
	Dialer   Dialer
	Logger   *slog.Logger
	EnvoyLog *slog.Logger // for Envoy's lines
	Forward  bool         // as Configure
}

// Supervisor supervises the Envoys of the keeper.
type Supervisor interface {
	// SetKeeper passes the next keeper once the connection to the last one was lost.
	SetKeeper(ctx context.Context, next epoch.Keeper) error
	Epochs() []epoch.Epoch
}

// New returns a Link that is not connected yet.
func New(options Options) *Link {
	l := &Link{options: options}
	l.Configure(options.Forward)
	return l
}

// Configure sets whether Envoy's lines are logged.
func (l *Link) Configure(forward bool) { l.forward.Store(forward) }

// Supervise sets the supervisor of the keeper's Envoys. It must be called before Run.
func (l *Link) Supervise(supervisor Supervisor) { l.supervisor = supervisor }

// Timing of connection attempts.
const (
	keeperTimeout  = 10 * time.Second // per attempt
	keeperPause    = 50 * time.Millisecond
	keeperPauseMax = 2 * time.Second
	keeperPatience = 5 * time.Second // for a keeper that re-executes, or serves an ending agent
)

// figuresAge is the maximum age of measurements for display.
const figuresAge = time.Second

// Open connects for the first time. While the keeper serves another agent, which may be ending,
// Open retries for keeperPatience.
func (l *Link) Open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keeperTimeout)
	defer cancel()
	var replaced bool
	for until := time.Now().Add(keeperPatience); ; {
		client, err := l.reach(ctx, &replaced)
		if err == nil {
			l.set(client)
			return nil
		}
		if !errors.Is(err, keeper.ErrBusy) || time.Now().After(until) {
			return err
		}
		l.options.Logger.Debug("the keeper serves another agent", "error", err)
		select {
		case <-time.After(keeperPause):
		case <-ctx.Done():
			return err
		}
	}
}

// reach connects to the keeper. If the keeper speaks an older protocol, reach makes it re-execute
// the installed program, once per replaced; its Envoys continue serving. A newer keeper is left
// unchanged.
func (l *Link) reach(ctx context.Context, replaced *bool) (*keeper.Client, error) {
	client, err := l.options.Dialer.Dial(ctx)
	version, ok := errors.AsType[*keeper.VersionError](err)
	if !ok || version.Keeper >= version.Agent || *replaced {
		return client, err
	}
	l.options.Logger.Info(
		"the keeper has an older version: upgrading it to the installed program",
		"why", err.Error())
	if failed := l.options.Dialer.Upgrade(ctx); failed != nil {
		return nil, fmt.Errorf("%w; the upgrade of the keeper failed: %w", err, failed)
	}
	*replaced = true
	return l.options.Dialer.Dial(ctx)
}

func (l *Link) set(client *keeper.Client) *Connection {
	c := &Connection{Client: client, exits: make(chan epoch.Process)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = c
	return c
}

// Get returns the current connection, which may be lost.
func (l *Link) Get() *Connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// Name returns the name of the part.
func (l *Link) Name() string { return "keeper" }

// Run forwards the keeper's events until ctx ends, and reconnects when the connection is lost.
func (l *Link) Run(ctx context.Context) error {
	l.MarkReady()
	for {
		l.follow(ctx, l.Get())
		if ctx.Err() != nil {
			return nil //nolint:nilerr // normal end of a part
		}
		client, err := l.find(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		err = l.supervisor.SetKeeper(ctx, l.set(client))
		if err != nil && ctx.Err() == nil {
			l.options.Logger.Error("cannot adopt the epochs of the new keeper", "error", err)
		}
	}
}

// find reconnects without a time limit. It logs an error once if that takes longer than
// keeperPatience, and the outcome: a keeper that re-executes (systemctl reload outrider-envoy)
// answers within moments. The error is that of ctx.
func (l *Link) find(ctx context.Context) (*keeper.Client, error) {
	before, lost := l.Get().Info(), time.Now()
	var replaced, late bool
	for pause := keeperPause; ; pause = min(2*pause, keeperPauseMax) {
		attempt, cancel := context.WithTimeout(ctx, keeperTimeout)
		client, err := l.reach(attempt, &replaced)
		cancel()
		if err == nil {
			l.found(before, client.Info())
			return client, nil
		}
		if !late && time.Since(lost) > keeperPatience {
			late = true
			l.options.Logger.Error("connection to keeper lost: no Envoy can be started or stopped",
				"pid", before.PID, "error", err)
		} else {
			l.options.Logger.Debug("cannot reconnect to keeper", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// found logs which keeper answers after a lost connection.
func (l *Link) found(before, now keeper.Info) {
	switch {
	case now.PID != before.PID:
		l.options.Logger.Error(
			"the keeper exited, and its Envoys with it; connected to another one",
			"before", before.PID, "pid", now.PID)
	case now.Reexecuted != before.Reexecuted:
		l.options.Logger.Info("the keeper re-executed itself; its Envoys continue serving",
			"pid", now.PID, "version", now.Version)
	default:
		l.options.Logger.Warn("reconnected to the keeper",
			"pid", now.PID)
	}
}

// follow forwards the events of a connection until it is lost or ctx ends.
func (l *Link) follow(ctx context.Context, c *Connection) {
	logs := envoyLogs{log: l.options.Logger, lines: l.options.EnvoyLog,
		readers: map[string]*envoyLog{}}
	for {
		select {
		case event, open := <-c.Events():
			switch {
			case !open:
				return
			case event.Exited != nil:
				logs.exited(event.Exited)
				select {
				case c.exits <- processOf(*event.Exited):
				case <-c.Done(): // the supervisor no longer receives
					return
				case <-ctx.Done():
					return
				}
			case event.Log != nil:
				logs.forward(event.Log, l.pid(event.Log.ID), l.forward.Load())
			}
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// pid returns the PID of an epoch, 0 if it is unknown.
func (l *Link) pid(id string) int {
	for _, e := range l.supervisor.Epochs() {
		if e.ID == id {
			return e.PID
		}
	}
	return 0
}

// Measure returns the keeper's measurements by process ID. Errors are logged and yield fewer
// entries.
func (l *Link) Measure(ctx context.Context) map[string]keeper.Process {
	measured := map[string]keeper.Process{}
	processes, err := l.Get().Client.Measure(ctx, figuresAge)
	if err != nil {
		l.options.Logger.Debug("cannot measure the epochs", "error", err)
	}
	for _, p := range processes {
		measured[p.ID] = p
	}
	return measured
}

// Clients returns the present number of clients' connections of a process.
func (l *Link) Clients(ctx context.Context, id string) (uint64, error) {
	processes, err := l.Get().Client.Measure(ctx, 0)
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		if p.ID == id && p.Exit == nil {
			return p.Downstream, nil
		}
	}
	return 0, errors.New("the process has ended")
}

// Shutdown ends the keeper and all its Envoys.
func (l *Link) Shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), keeperTimeout)
	defer cancel()
	client := l.Get()
	if err := client.Shutdown(ctx); err != nil && !errors.Is(err, keeper.ErrClosed) {
		l.options.Logger.Error("cannot end the keeper", "error", err)
	}
	client.Close()
}

// ShutdownIfIdle ends a connected keeper if it has no running Envoy.
func (l *Link) ShutdownIfIdle() {
	if l.Get() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), keeperTimeout)
	defer cancel()
	processes, err := l.Get().Client.Processes(ctx)
	if err != nil {
		return
	}
	for _, p := range processes {
		if p.Exit == nil {
			return
		}
	}
	l.Shutdown()
}
