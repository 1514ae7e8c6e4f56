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
	told  func(ctx context.Context, id string, spec *epoch.Spec) error
	board *condition.Board
	log   *slog.Logger

	config *config.Config // that is in force, with its spec; nil: none is yet
	spec   *epoch.Spec
	tuned  string // ID of the epoch that was looked at last
}

const (
	// tuneTime bounds telling Envoy its new log levels.
	tuneTime = 5 * time.Second

	conditionLevels = "log-level-not-applied"
)

// tune is for a configuration that is now in force, and its spec.
func (t *tuner) tune(c *config.Config, spec *epoch.Spec) {
	t.config, t.spec = c, spec
	live, _ := t.live()
	t.apply(live)
}

// follow looks at an epoch that got live since: it may have been started before what is in force now was.
func (t *tuner) follow() {
	if live, ok := t.live(); ok && t.spec != nil && live.ID != t.tuned {
		t.apply(live)
	}
}

// apply has the levels in force for the live epoch, if there is one, and those after it. One that has them is not told: others may have
// been set by hand.
func (t *tuner) apply(live epoch.Epoch) {
	t.tuned = live.ID
	ctx, cancel := context.WithTimeout(context.Background(), tuneTime)
	defer cancel()
	differs, err := t.renew(ctx, t.spec)
	if err != nil {
		t.log.Warn("an Envoy that is started again may have log levels that are not in force any more", "error", err)
		return
	}
	if live.ID == "" {
		return // it is looked at when it is there
	}
	if differs {
		if err := t.set(ctx, live, t.config.Envoy.LogLevel, t.config.Envoy.ComponentLogLevel); err != nil {
			t.board.Raise(conditionLevels, condition.Warning, fmt.Sprintf("epoch %d did not take its new log level: %v; the next epoch has it", live.Number, err))
			return
		}
		if err := t.told(ctx, live.ID, t.spec); err != nil {
			t.log.Warn("Envoy may be told its log levels once more", "epoch", live.Number, "error", err)
		}
	}
	t.board.Clear(conditionLevels)
}
