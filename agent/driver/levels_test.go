package driver

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// fakeLevels is a Levels with fake Envoys, and the levels each was started with or set to.
type fakeLevels struct {
	*Levels
	live  epoch.Epoch
	has   map[string]string
	sets  []string // requests to Envoy, successful or not
	fails error    // of these requests
	ended error    // of requests to the supervisor
}

func newLevels() *fakeLevels {
	l := &fakeLevels{has: map[string]string{}}
	l.Levels = NewLevels(l, l, condition.NewBoard(), slog.New(slog.DiscardHandler))
	return l
}

// The methods below implement levelSupervisor and levelAdmin.

func (l *fakeLevels) Live() (epoch.Epoch, epoch.Admin, bool) {
	l.live.AdminAddress = l.live.ID
	return l.live, nil, l.live.ID != ""
}

func (l *fakeLevels) Renew(_ context.Context, spec *epoch.Spec) (bool, error) {
	return l.live.ID != "" && l.has[l.live.ID] != spec.Hash, l.ended
}

func (l *fakeLevels) Tuned(_ context.Context, id string, spec *epoch.Spec) error {
	l.has[id] = spec.Hash
	return l.ended
}

func (l *fakeLevels) SetLogLevels(_ context.Context, address, level, components string) error {
	l.sets = append(l.sets, address+" "+level+" "+components)
	return l.fails
}

func (l *fakeLevels) tune(t *testing.T, level string) {
	t.Helper()
	c, spec := leveled(level)
	l.Configure(t.Context(), c, spec)
}

// leveled returns a configuration and its spec. The hash represents the command line.
func leveled(level string) (*config.Config, *epoch.Spec) {
	c := &config.Config{}
	c.Envoy.LogLevel, c.Envoy.ComponentLogLevel = level, "http:debug"
	return c, &epoch.Spec{Hash: level}
}

func (l *fakeLevels) expect(t *testing.T, when string, condition bool, sets ...string) {
	t.Helper()
	if diff := cmp.Diff(sets, l.sets); diff != "" {
		t.Errorf("%s: %s", when, diff)
	}
	if stands := len(l.board.Conditions()) > 0; stands != condition {
		t.Errorf("%s: conditions %+v", when, l.board.Conditions())
	}
	l.sets = nil
}

func TestLevels_SetOnlyWhereTheyDiffer(t *testing.T) {
	l := newLevels()
	l.live.ID, l.has = "a", map[string]string{"a": "info", "b": "debug", "c": "info"}
	l.Follow(t.Context())
	l.expect(t, "before Configure", false)
	l.tune(t, "info")
	l.expect(t, "live epoch has the levels", false)
	l.tune(t, "debug")
	l.expect(t, "live epoch differs", false, "a debug http:debug")
	l.fails = errors.New("gone")
	l.tune(t, "error")
	l.expect(t, "Envoy refuses", true, "a error http:debug")
	l.Follow(t.Context())
	l.expect(t, "no retry without a change", true)
	l.tune(t, "error")
	l.expect(t, "Envoy still refuses", true, "a error http:debug")
	l.live.ID = ""
	l.Follow(t.Context())
	l.tune(t, "debug")
	l.expect(t, "no live epoch", true)
	l.fails, l.live.ID = nil, "b"
	l.Follow(t.Context())
	l.expect(t, "next epoch has the levels", false)
	l.live.ID = "c"
	l.Follow(t.Context())
	l.Follow(t.Context())
	l.expect(t, "older epoch differs", false, "c debug http:debug")
	l.ended = epoch.ErrEnded
	l.tune(t, "info")
	l.expect(t, "the supervisor has ended", false)
}
