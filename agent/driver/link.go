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
	"time"

	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/part"
)

// Link is the agent's connection to the keeper. It reconnects when the connection is lost.
type Link struct {
	part.Readiness
	options Options

	mu      sync.Mutex
	current *Connection
}

// Options configures a Link.
type Options struct {
	Connect func(ctx context.Context) (*keeper.Client, error)
	// Upgrade makes a keeper of another protocol re-execute itself from the installed program.
	Upgrade func(ctx context.Context) error
	// Changed is called with each connection except the first.
	Changed func(*Connection)

	Logger   *slog.Logger
	EnvoyLog *slog.Logger        // for Envoy's lines
	Forward  func() bool         // reports whether Envoy's lines are logged
	PID      func(id string) int // of an epoch, 0 if unknown
}

// New returns a Link that is not connected yet.
func New(options Options) *Link { return &Link{options: options} }

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
	client, err := l.options.Connect(ctx)
	version, ok := errors.AsType[*keeper.VersionError](err)
	if !ok || version.Keeper >= version.Agent || *replaced {
		return client, err
	}
	l.options.Logger.Info(
		"the keeper is of an older version: it is asked to replace itself by the installed program",
		"why", err.Error())
	if failed := l.options.Upgrade(ctx); failed != nil {
		return nil, fmt.Errorf("%w; asked to replace itself it refused: %w", err, failed)
	}
	*replaced = true
	return l.options.Connect(ctx)
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
		l.options.Changed(l.set(client))
	}
}

// find reconnects without a time limit and logs the outcome. A keeper that re-executes (systemctl
// reload outrider-envoy) answers within moments. The error is that of ctx.
func (l *Link) find(ctx context.Context) (*keeper.Client, error) {
	before, lost := l.Get().Info(), time.Now()
	late := time.AfterFunc(keeperPatience, func() {
		l.options.Logger.Error(
			"the connection to the keeper is lost: Envoy goes on as long as its keeper lives, but can be neither started nor ended", "pid", before.PID)
	})
	defer late.Stop()
	var replaced bool
	for pause := keeperPause; ; pause = min(2*pause, keeperPauseMax) {
		attempt, cancel := context.WithTimeout(ctx, keeperTimeout)
		client, err := l.reach(attempt, &replaced)
		cancel()
		if err == nil {
			l.found(before, client.Info())
			return client, nil
		}
		level := slog.LevelDebug
		if time.Since(lost) > keeperPatience {
			level = slog.LevelError
		}
		l.options.Logger.Log(ctx, level, "no connection to the keeper", "error", err)
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
		l.options.Logger.Error("the keeper has ended, and its Envoys with it; another one runs",
			"before", before.PID, "pid", now.PID)
	case now.Reexecuted != before.Reexecuted:
		l.options.Logger.Info("the keeper is replaced in place; its Envoys go on", "pid", now.PID,
			"version", now.Version)
	default:
		l.options.Logger.Warn("the connection to the keeper was lost and is there again",
			"pid", now.PID)
	}
}

// follow forwards the events of a connection until it is lost or ctx ends.
func (l *Link) follow(ctx context.Context, c *Connection) {
	logs := envoyLogs{log: l.options.Logger, lines: l.options.EnvoyLog, enabled: l.options.Forward,
		pid: l.options.PID, readers: map[string]*envoyLog{}}
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
				case <-ctx.Done():
					return
				}
			case event.Log != nil:
				logs.forward(event.Log)
			}
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// Measure returns the keeper's measurements by process ID. Errors are logged and yield fewer
// entries.
func (l *Link) Measure(ctx context.Context) map[string]keeper.Process {
	measured := map[string]keeper.Process{}
	processes, err := l.Get().Client.Measure(ctx, figuresAge)
	if err != nil {
		l.options.Logger.Debug("epochs could not be measured", "error", err)
	}
	for _, p := range processes {
		measured[p.ID] = p
	}
	return measured
}

// Shutdown ends the keeper and all its Envoys.
func (l *Link) Shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), keeperTimeout)
	defer cancel()
	client := l.Get()
	if err := client.Shutdown(ctx); err != nil && !errors.Is(err, keeper.ErrClosed) {
		l.options.Logger.Error("the keeper could not be ended", "error", err)
	}
	client.Close()
}

// ShutdownIfIdle ends the keeper if it has no running Envoy.
func (l *Link) ShutdownIfIdle() {
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
