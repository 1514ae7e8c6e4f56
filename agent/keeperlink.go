package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
)

// keeperLink is the agent's connection to the keeper, kept up: a keeper that is lost is found again, or started anew.
type keeperLink struct {
	connect func(ctx context.Context) (*keeper.Client, error)
	upgrade func(ctx context.Context) error // makes a keeper of another protocol re-execute itself from the installed program
	log     *slog.Logger
	lines   *slog.Logger        // where Envoy's lines go
	envoy   func() bool         // Envoy's lines are passed on
	pid     func(id string) int // of an epoch, 0 if it is not known yet
	changed func(*connection)

	mu      sync.Mutex
	current *connection
}

// The pace of finding a keeper again.
const (
	keeperTimeout  = 10 * time.Second // one attempt
	keeperPause    = 50 * time.Millisecond
	keeperPauseMax = 2 * time.Second
	keeperPatience = 5 * time.Second // for one that replaces itself, or serves an agent that ends
)

// figuresAge is how old the figures may be that people see.
const figuresAge = time.Second

// open connects for the first time. While the keeper serves another agent it tries again, for
// keeperPatience: that agent may be ending.
func (l *keeperLink) open(ctx context.Context) error {
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
		l.log.Debug("the keeper serves another agent", "error", err)
		select {
		case <-time.After(keeperPause):
		case <-ctx.Done():
			return err
		}
	}
}

// reach connects. A keeper of an older agent, which speaks an older protocol, is asked to re-execute itself from the program that is
// installed now; its Envoys go on. It is done once, which replaced remembers: were the installed program no cure, asking again would
// only disturb the agent that the keeper suits. One that is newer than this agent stays as it is.
func (l *keeperLink) reach(ctx context.Context, replaced *bool) (*keeper.Client, error) {
	client, err := l.connect(ctx)
	version, ok := errors.AsType[*keeper.VersionError](err)
	if !ok || version.Keeper >= version.Agent || *replaced {
		return client, err
	}
	l.log.Info("the keeper is of an older version: it is asked to replace itself by the installed program", "why", err.Error())
	if failed := l.upgrade(ctx); failed != nil {
		return nil, fmt.Errorf("%w; asked to replace itself it refused: %w", err, failed)
	}
	*replaced = true
	return l.connect(ctx)
}

func (l *keeperLink) set(client *keeper.Client) *connection {
	c := &connection{Client: client, exits: make(chan epoch.Process)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = c
	return c
}

// get is the connection of now; it may be lost.
func (l *keeperLink) get() *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// Name is the part's name.
func (l *keeperLink) Name() string { return "keeper" }

// Run passes on what the keeper tells until ctx ends, and connects again whenever the connection is lost.
func (l *keeperLink) Run(ctx context.Context) error {
	for {
		l.follow(ctx, l.get())
		if ctx.Err() != nil {
			return nil //nolint:nilerr // this is how a part ends
		}
		client, err := l.find(ctx)
		if err != nil {
			return nil //nolint:nilerr // nobody wants a connection any more
		}
		l.changed(l.set(client))
	}
}

// find connects again, for as long as it takes, and says what became of the keeper. One that replaces itself (systemctl reload
// outrider-envoy) answers again within moments. The error is that of ctx.
func (l *keeperLink) find(ctx context.Context) (*keeper.Client, error) {
	before, lost := l.get().Info(), time.Now()
	late := time.AfterFunc(keeperPatience, func() {
		l.log.Error("the connection to the keeper is lost: Envoy goes on as long as its keeper lives, but can be neither started nor ended", "pid", before.PID)
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
		l.log.Log(ctx, level, "no connection to the keeper", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// found says which keeper answers after the connection was lost.
func (l *keeperLink) found(before, now keeper.Info) {
	switch {
	case now.PID != before.PID:
		l.log.Error("the keeper has ended, and its Envoys with it; another one runs", "before", before.PID, "pid", now.PID)
	case now.Reexecuted != before.Reexecuted:
		l.log.Info("the keeper is replaced in place; its Envoys go on", "pid", now.PID, "version", now.Version)
	default:
		l.log.Warn("the connection to the keeper was lost and is there again", "pid", now.PID)
	}
}

// follow passes on the events of one connection until it is lost or ctx ends.
func (l *keeperLink) follow(ctx context.Context, c *connection) {
	logs := map[string]*envoyLog{}
	for {
		select {
		case event, open := <-c.Events():
			switch {
			case !open:
				return
			case event.Exited != nil:
				if log := logs[event.Exited.ID]; log != nil {
					l.tellLeftOut(log.discretion.LeftOut(true), event.Exited.Number)
				}
				delete(logs, event.Exited.ID)
				select {
				case c.exits <- processOf(*event.Exited):
				case <-ctx.Done():
					return
				}
			case event.Log != nil:
				l.passOn(logs, event.Log)
			}
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// envoyLog is how far the log of one Envoy is read.
type envoyLog struct {
	discretion envoy.Discretion
	parser     envoy.LogParser
	routine    envoy.Routine
	pid        int // 0: not known yet
}

// passOn logs Envoy's lines, without what they quote of its configuration.
func (l *keeperLink) passOn(logs map[string]*envoyLog, batch *keeper.Log) {
	if logs[batch.ID] == nil {
		logs[batch.ID] = &envoyLog{}
	}
	log := logs[batch.ID]
	if batch.Dropped > 0 {
		log.discretion.Lost()
		l.log.Warn("lines of Envoy's log were lost because nobody took them", "epoch", batch.Epoch, "lines", batch.Dropped)
	}
	if log.pid == 0 {
		log.pid = l.pid(batch.ID)
	}
	if !l.envoy() {
		log.discretion.Lost()
		return
	}
	for _, line := range log.parser.Parse(log.discretion.Take(batch.Lines)) {
		level := envoyLevel(line.Level)
		if log.routine.Is(line) {
			level = min(level, slog.LevelDebug)
			if !l.log.Enabled(context.Background(), level) { // Envoy's lines have no level of the agent's
				continue
			}
		}
		logEnvoyLine(l.lines, level, batch.Epoch, log.pid, line)
	}
	l.tellLeftOut(log.discretion.LeftOut(false), batch.Epoch)
}

func (l *keeperLink) tellLeftOut(lines, epoch int) {
	if lines > 0 {
		l.log.Warn(fmt.Sprintf("%d lines of Envoy's log were left out: they quote its configuration, or look like it", lines), "epoch", epoch)
	}
}

// measure asks for the memory and connections of the processes, by their ids; what cannot be had is left out.
func (l *keeperLink) measure(ctx context.Context) map[string]keeper.Process {
	measured := map[string]keeper.Process{}
	processes, err := l.get().Client.Measure(ctx, figuresAge)
	if err != nil {
		l.log.Debug("epochs could not be measured", "error", err)
	}
	for _, p := range processes {
		measured[p.ID] = p
	}
	return measured
}

// shutdown ends the keeper and everything of it.
func (l *keeperLink) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), keeperTimeout)
	defer cancel()
	client := l.get()
	if err := client.Shutdown(ctx); err != nil && !errors.Is(err, keeper.ErrClosed) {
		l.log.Error("the keeper could not be ended", "error", err)
	}
	client.Close()
}

// shutdownIfIdle ends a keeper that owns no living Envoy: nobody would need it.
func (l *keeperLink) shutdownIfIdle() {
	ctx, cancel := context.WithTimeout(context.Background(), keeperTimeout)
	defer cancel()
	processes, err := l.get().Client.Processes(ctx)
	if err != nil {
		return
	}
	for _, p := range processes {
		if p.Exit == nil {
			return
		}
	}
	l.shutdown()
}
