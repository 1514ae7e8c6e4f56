package driver

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// Levels applies Envoy's log levels, which need no new epoch, to the live epoch and to later
// ones. Its methods must not be called concurrently.
type Levels struct {
	supervisor levelSupervisor
	admin      levelAdmin
	board      *condition.Board
	log        *slog.Logger

	config *config.Config // in force, with its spec; nil until Configure
	spec   *epoch.Spec
	tuned  string // ID of the epoch that apply last examined
}

// NewLevels returns the Levels of a supervisor's epochs.
func NewLevels(
	supervisor levelSupervisor, admin levelAdmin, board *condition.Board, log *slog.Logger,
) *Levels {
	return &Levels{supervisor: supervisor, admin: admin, board: board, log: log}
}

// levelSupervisor is the part of the supervisor that Levels needs.
type levelSupervisor interface {
	Live() (epoch.Epoch, epoch.Admin, bool)
	// Renew makes later epochs start with a spec of equal hash, and reports whether the command
	// line of the live one differs.
	Renew(ctx context.Context, spec *epoch.Spec) (differs bool, err error)
	// Tuned records that an epoch has the levels of a spec.
	Tuned(ctx context.Context, id string, spec *epoch.Spec) error
}

// levelAdmin sets the levels of the Envoy whose admin interface is at an address.
type levelAdmin interface {
	SetLogLevels(ctx context.Context, address, level, components string) error
}

// SetLogLevels sets log levels of the Envoy whose admin interface is at an address.
func (l *Link) SetLogLevels(ctx context.Context, address, level, components string) error {
	return NewAdmin(address).SetLogLevels(ctx, level, components)
}

const (
	// levelTime bounds the requests to the supervisor and Envoy.
	levelTime = 5 * time.Second

	conditionLevels = "log-level-not-applied"
)

// Configure applies the levels of the configuration in force.
func (l *Levels) Configure(ctx context.Context, c *config.Config, spec *epoch.Spec) {
	l.config, l.spec = c, spec
	live, _, _ := l.supervisor.Live()
	l.apply(ctx, live)
}

// Follow applies the configured levels to a live epoch that became live after Configure.
func (l *Levels) Follow(ctx context.Context) {
	if live, _, ok := l.supervisor.Live(); ok && l.spec != nil && live.ID != l.tuned {
		l.apply(ctx, live)
	}
}

// apply sets the levels of an epoch that was started with other ones. It leaves the others alone,
// since a request may have set their levels.
func (l *Levels) apply(ctx context.Context, live epoch.Epoch) {
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
		err := l.admin.SetLogLevels(ctx, live.AdminAddress, c.LogLevel, c.ComponentLogLevel)
		if err != nil {
			l.board.Raise(conditionLevels, condition.Warning, fmt.Sprintf(
				"cannot set the log level of epoch %d: %v; the next epoch starts with it",
				live.Number, err))
			return
		}
		if err := l.supervisor.Tuned(ctx, live.ID, l.spec); err != nil {
			l.log.Warn("cannot record Envoy's log levels", "epoch", live.Number, "error", err)
		}
	}
	l.board.Clear(conditionLevels)
}
