package epoch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/lifecycle"
)

// KeeperLink is the agent's connection to the keeper. It reconnects when the connection is lost. It
// forwards exits of processes to the Supervisor, and Envoy's log lines to the log.
type KeeperLink struct {
	lifecycle.Readiness
	dialer     keeper.Dialer
	log        *slog.Logger
	envoyLog   *slog.Logger
	forwardLog atomic.Bool
	supervisor *Supervisor

	mu      sync.Mutex
	current *KeeperConnection
}

// KeeperLinkOptions configure a KeeperLink.
type KeeperLinkOptions struct {
	Dialer     keeper.Dialer
	Logger     *slog.Logger
	EnvoyLog   *slog.Logger // for Envoy's log lines
	ForwardLog bool         // argument of SetLogForwarding
}

// NewKeeperLink returns a KeeperLink that is not connected yet.
func NewKeeperLink(options KeeperLinkOptions) *KeeperLink {
	l := &KeeperLink{dialer: options.Dialer, log: options.Logger, envoyLog: options.EnvoyLog}
	l.SetLogForwarding(options.ForwardLog)
	return l
}

// SetLogForwarding sets whether Envoy's log lines are forwarded.
func (l *KeeperLink) SetLogForwarding(forward bool) { l.forwardLog.Store(forward) }

// SetSupervisor sets the supervisor of the keeper's Envoys. It must be called before Run.
func (l *KeeperLink) SetSupervisor(supervisor *Supervisor) { l.supervisor = supervisor }

// Timing of connection attempts.
const (
	dialTimeout    = 10 * time.Second // per attempt
	keeperPause    = 50 * time.Millisecond
	keeperPauseMax = 2 * time.Second
)

// figuresAge is the maximum age of measurements that commands and metrics show.
const figuresAge = time.Second

// Connect connects for the first time. While the keeper serves another agent, which may be ending,
// Connect retries for keeperPatience.
func (l *KeeperLink) Connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var replaced bool
	for until := time.Now().Add(keeperPatience); ; {
		client, err := l.dial(ctx, &replaced)
		if err == nil {
			l.set(client)
			return nil
		}
		if !errors.Is(err, keeper.ErrBusy) || time.Now().After(until) {
			return err
		}
		l.log.Debug("the keeper serves another agent", "error", err)
		if backoff.Sleep(ctx, keeperPause) != nil {
			return err
		}
	}
}

// dial connects to the keeper. If the keeper has an older protocol, dial makes it re-execute the
// installed program, while its Envoys continue to serve, and sets *replaced. If *replaced is set
// already, or if the keeper is newer, dial returns the error.
func (l *KeeperLink) dial(ctx context.Context, replaced *bool) (*keeper.Client, error) {
	client, err := l.dialer.Dial(ctx)
	version, ok := errors.AsType[*keeper.VersionError](err)
	if !ok || version.Keeper >= version.Agent || *replaced {
		return client, err
	}
	l.log.Info(
		"the keeper has an older protocol: upgrading it to the installed program",
		"why", err.Error())
	if failed := l.dialer.Upgrade(ctx); failed != nil {
		return nil, fmt.Errorf("%w; the upgrade of the keeper failed: %w", err, failed)
	}
	*replaced = true
	return l.dialer.Dial(ctx)
}

func (l *KeeperLink) set(client *keeper.Client) *KeeperConnection {
	c := &KeeperConnection{Client: client, exits: make(chan keeper.Process)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = c
	return c
}

// Connection returns the current connection, which may be lost.
func (l *KeeperLink) Connection() *KeeperConnection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// Name returns the name of this component of the agent.
func (l *KeeperLink) Name() string { return "keeper" }

// Run forwards the keeper's events until ctx ends, and reconnects when the connection is lost.
func (l *KeeperLink) Run(ctx context.Context) error {
	l.MarkReady()
	for {
		l.forward(ctx, l.Connection())
		if ctx.Err() != nil {
			return nil //nolint:nilerr // normal end of a part
		}
		client, err := l.reconnect(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		err = l.supervisor.setKeeper(ctx, l.set(client))
		if err != nil && ctx.Err() == nil {
			l.log.Error("cannot adopt the epochs of the new keeper", "error", err)
		}
	}
}

// reconnect connects again. It retries until ctx ends, and then returns ctx's error. A keeper that
// re-executes itself (systemctl reload outrider-envoy) answers within moments. If the connection is
// missing for longer than keeperPatience, reconnect logs one error.
func (l *KeeperLink) reconnect(ctx context.Context) (*keeper.Client, error) {
	before, lost := l.Connection().Info(), time.Now()
	var replaced, late bool
	pauses := backoff.Backoff{Min: keeperPause, Max: keeperPauseMax}
	for {
		attempt, cancel := context.WithTimeout(ctx, dialTimeout)
		client, err := l.dial(attempt, &replaced)
		cancel()
		if err == nil {
			l.logReconnected(before, client.Info())
			return client, nil
		}
		if !late && time.Since(lost) > keeperPatience {
			late = true
			l.log.Error("connection to keeper lost: no Envoy can be started or stopped",
				"pid", before.PID, "error", err)
		} else {
			l.log.Debug("cannot reconnect to keeper", "error", err)
		}
		if err := pauses.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// logReconnected logs which keeper answers after a reconnect.
func (l *KeeperLink) logReconnected(before, now keeper.Info) {
	switch {
	case now.PID != before.PID:
		l.log.Error(
			"the keeper and its Envoys exited; connected to a new keeper",
			"before", before.PID, "pid", now.PID)
	case now.Reexecuted != before.Reexecuted:
		l.log.Info("the keeper re-executed itself; its Envoys continue serving",
			"pid", now.PID, "version", now.Version)
	default:
		l.log.Warn("reconnected to the keeper",
			"pid", now.PID)
	}
}

// forward forwards the events of a connection until it is lost or ctx ends.
func (l *KeeperLink) forward(ctx context.Context, c *KeeperConnection) {
	lines := envoy.NewLogForwarder(l.envoyLog, l.log)
	for {
		select {
		case event, open := <-c.Events():
			switch {
			case !open:
				return
			case event.Exited != nil:
				lines.EndEpochLog(event.Exited.ID, event.Exited.EpochNumber)
				select {
				case c.exits <- *event.Exited:
				// after the end of the connection the supervisor does not receive exits
				case <-c.Done():
					return
				case <-ctx.Done():
					return
				}
			case event.Log != nil:
				lines.Forward(envoy.LogBatch{ID: event.Log.ID, Epoch: event.Log.EpochNumber,
					PID: l.pid(event.Log.ID), Lines: event.Log.Lines,
					Dropped: event.Log.Dropped}, l.forwardLog.Load())
			}
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// pid returns the PID of an epoch, 0 if it is unknown.
func (l *KeeperLink) pid(id string) int {
	for _, e := range l.supervisor.Epochs() {
		if e.ID == id {
			return e.PID
		}
	}
	return 0
}

// MeasureProcesses returns the keeper's measurements by process ID. If it fails, it logs the error,
// and the result is incomplete or empty.
func (l *KeeperLink) MeasureProcesses(ctx context.Context) map[string]keeper.Process {
	measured := map[string]keeper.Process{}
	processes, err := l.Connection().Client.MeasureProcesses(ctx, figuresAge)
	if err != nil {
		l.log.Debug("cannot read memory and connections of the epochs", "error", err)
	}
	for _, p := range processes {
		measured[p.ID] = p
	}
	return measured
}

// ClientConnections returns the current number of client connections of a process.
func (l *KeeperLink) ClientConnections(ctx context.Context, id string) (uint64, error) {
	processes, err := l.Connection().Client.MeasureProcesses(ctx, 0)
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		if p.ID == id && p.Exit == nil {
			return p.ClientConnections, nil
		}
	}
	return 0, errors.New("the process has ended")
}

// ShutdownKeeper ends the keeper and all its Envoys.
func (l *KeeperLink) ShutdownKeeper() {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	client := l.Connection()
	if err := client.Shutdown(ctx); err != nil && !errors.Is(err, keeper.ErrClosed) {
		l.log.Error("cannot end the keeper", "error", err)
	}
	client.Close()
}

// ShutdownKeeperIfIdle ends the keeper if it is connected and has no running Envoy.
func (l *KeeperLink) ShutdownKeeperIfIdle() {
	if l.Connection() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	processes, err := l.Connection().Client.Processes(ctx)
	if err != nil {
		return
	}
	for _, p := range processes {
		if p.Exit == nil {
			return
		}
	}
	l.ShutdownKeeper()
}
