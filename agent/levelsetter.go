package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// levelSetter applies Envoy's log levels, which need no new epoch: to the live epoch and to those
// that start later. Its methods are called one at a time.
type levelSetter struct {
	supervisor levelSupervisor
	admin      func(epoch.Epoch) levelAdmin
	board      *condition.Board
	log        *slog.Logger

	config *config.Config // in force, with its spec; nil before the first
	spec   *epoch.Spec
	tuned  string // ID of the epoch that was looked at last
}

// levelSupervisor is the part of the supervisor that levelSetter needs.
type levelSupervisor interface {
	Live() (epoch.Epoch, epoch.Admin, bool)
	// Renew makes later epochs start with a spec of equal hash, and reports whether the command
	// line of the live one differs.
	Renew(ctx context.Context, spec *epoch.Spec) (differs bool, err error)
	// Tuned records that an epoch has the levels of a spec.
	Tuned(ctx context.Context, id string, spec *epoch.Spec) error
}

// levelAdmin is Envoy's admin interface.
type levelAdmin interface {
	SetLogLevels(ctx context.Context, level, components string) error
}

const (
	// levelTime bounds the requests to supervisor and Envoy.
	levelTime = 5 * time.Second

	conditionLevels = "log-level-not-applied"
)

// Configure applies the levels of the configuration in force.
func (l *levelSetter) Configure(ctx context.Context, c *config.Config, spec *epoch.Spec) {
	l.config, l.spec = c, spec
	live, _, _ := l.supervisor.Live()
	l.apply(ctx, live)
}

// follow applies them to a live epoch that may have been started before.
func (l *levelSetter) follow(ctx context.Context) {
	if live, _, ok := l.supervisor.Live(); ok && l.spec != nil && live.ID != l.tuned {
		l.apply(ctx, live)
	}
}

// apply skips an epoch that was started with the levels in force: others may have been set by hand.
func (l *levelSetter) apply(ctx context.Context, live epoch.Epoch) {
	l.tuned = live.ID
	ctx, cancel := context.WithTimeout(ctx, levelTime)
	defer cancel()
	differs, err := l.supervisor.Renew(ctx, l.spec)
	if err != nil {
		l.log.Warn("cannot update the log levels of epochs that start later", "error", err)
		return
	}
	if live.ID == "" {
		return
	}
	if differs {
		c := l.config.Envoy
		if err := l.admin(live).SetLogLevels(ctx, c.LogLevel, c.ComponentLogLevel); err != nil {
			l.board.Raise(conditionLevels, condition.Warning, fmt.Sprintf(
				"epoch %d did not take its new log level: %v; the next epoch has it",
				live.Number, err))
			return
		}
		if err := l.supervisor.Tuned(ctx, live.ID, l.spec); err != nil {
			l.log.Warn("cannot record Envoy's log levels", "epoch", live.Number, "error", err)
		}
	}
	l.board.Clear(conditionLevels)
}
