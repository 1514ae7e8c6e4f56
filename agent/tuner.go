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

// tuner puts in force what makes no other Envoy of a configuration: Envoy's log levels, in the epoch that serves and in those that are started
// after it. It is the loop's of the reloader.
type tuner struct {
	renew func(ctx context.Context, spec *epoch.Spec) (differs bool, err error)
	live  func() (epoch.Epoch, bool)
	set   func(ctx context.Context, e epoch.Epoch, level, components string) error
	board *condition.Board
	log   *slog.Logger
	deaf  string // ID of the epoch that did not take its levels
}

const (
	// tuneTime bounds telling Envoy its new log levels.
	tuneTime = 5 * time.Second

	conditionLevels = "log-level-not-applied"
)

// tune is for a configuration that is now in force, and its spec. An epoch that has the levels is not told them: others may have been
// set by hand.
func (t *tuner) tune(c *config.Config, spec *epoch.Spec) {
	ctx, cancel := context.WithTimeout(context.Background(), tuneTime)
	defer cancel()
	differs, err := t.renew(ctx, spec)
	if err != nil {
		t.log.Warn("an Envoy that is started again may have log levels that are not in force any more", "error", err)
		return
	}
	live, ok := t.live()
	if !ok {
		return // the next one has them
	}
	if differs || live.ID == t.deaf {
		t.deaf = ""
		if err := t.set(ctx, live, c.Envoy.LogLevel, c.Envoy.ComponentLogLevel); err != nil {
			t.deaf = live.ID
			t.board.Raise(conditionLevels, condition.Warning, fmt.Sprintf("epoch %d did not take its new log level: %v; the next epoch has it", live.Number, err))
			return
		}
	}
	t.board.Clear(conditionLevels)
}
