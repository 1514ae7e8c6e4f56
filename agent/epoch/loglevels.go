package epoch

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
)

// LogLevelApplier applies the configured log levels of Envoy to the live epoch and to later ones; a
// change needs no new epoch. Its methods must not be called concurrently.
type LogLevelApplier struct {
	supervisor *Supervisor
	board      *condition.Registry
	log        *slog.Logger

	level, components string // configured levels: the arguments of Admin.SetLogLevels
	spec              *Spec  // spec with the configured levels; nil until Configure
	applied           string // ID of the epoch that apply last examined
}

// NewLogLevelApplier returns the LogLevelApplier for a supervisor's epochs.
func NewLogLevelApplier(supervisor *Supervisor, board *condition.Registry,
	log *slog.Logger) *LogLevelApplier {
	return &LogLevelApplier{supervisor: supervisor, board: board, log: log}
}

const (
	// levelTimeout bounds each request to the supervisor or to Envoy.
	levelTimeout = 5 * time.Second

	conditionLevels = "log-level-not-applied"
)

// Configure applies the levels of a new configuration to the live epoch. Later epochs are started
// with spec.
func (l *LogLevelApplier) Configure(ctx context.Context, level, components string, spec *Spec) {
	l.level, l.components, l.spec = level, components, spec
	live, admin, _ := l.supervisor.Live()
	l.apply(ctx, live, admin)
}

// Update applies the configured levels to an epoch that became live after the last Configure.
func (l *LogLevelApplier) Update(ctx context.Context) {
	live, admin, ok := l.supervisor.Live()
	if ok && l.spec != nil && live.ID != l.applied {
		l.apply(ctx, live, admin)
	}
}

// apply sets the levels of an epoch if it was started with others. If it was started with the
// configured levels, apply changes nothing, because a request may have changed the levels in the
// meantime.
func (l *LogLevelApplier) apply(ctx context.Context, live Epoch, admin Admin) {
	l.applied = live.ID
	ctx, cancel := context.WithTimeout(ctx, levelTimeout)
	defer cancel()
	differs, err := l.supervisor.updateSpec(ctx, l.spec)
	if err != nil {
		l.log.Warn("cannot update the log levels of epochs that start later", "error", err)
		return
	}
	if live.ID == "" {
		return
	}
	if differs {
		if err := admin.SetLogLevels(ctx, l.level, l.components); err != nil {
			l.board.Raise(conditionLevels, condition.Warning, fmt.Sprintf(
				"cannot set the log level of epoch %d: %v; the next epoch starts with it",
				live.Number, err))
			return
		}
		if err := l.supervisor.recordAppliedLogLevels(ctx, live.ID, l.spec); err != nil {
			l.log.Warn("cannot record Envoy's log levels", "epoch", live.Number, "error", err)
		}
	}
	l.board.Clear(conditionLevels)
}
