package agent

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

func TestLogLevelsAreToldToWhomHasOthers(t *testing.T) {
	type told struct{ epoch, level, components string }
	var got []told
	var fails, unknown error
	live, differs, board := epoch.Epoch{ID: "a"}, false, condition.NewBoard()
	tuner := &tuner{board: board, log: slog.New(slog.DiscardHandler),
		renew: func(context.Context, *epoch.Spec) (bool, error) { return differs, unknown },
		live:  func() (epoch.Epoch, bool) { return live, live.ID != "" },
		set: func(_ context.Context, e epoch.Epoch, level, components string) error {
			got = append(got, told{e.ID, level, components})
			return fails
		}}
	for _, step := range []struct {
		name      string
		live      string
		differs   bool
		fails     error
		unknown   error
		want      []told
		condition bool
	}{
		{name: "it has them", live: "a"},
		{name: "it has others", live: "a", differs: true, want: []told{{"a", "info", "http:debug"}}},
		{name: "it does not take them", live: "a", differs: true, fails: errors.New("gone"), want: []told{{"a", "info", "http:debug"}}, condition: true},
		{name: "still not", live: "a", fails: errors.New("gone"), want: []told{{"a", "info", "http:debug"}}, condition: true},
		{name: "nobody serves", live: "", condition: true},
		{name: "the next one has them", live: "b"},
		{name: "the supervisor has ended", live: "b", differs: true, unknown: epoch.ErrEnded},
	} {
		got, live.ID, differs, fails, unknown = nil, step.live, step.differs, step.fails, step.unknown
		c := &config.Config{}
		c.Envoy.LogLevel, c.Envoy.ComponentLogLevel = "info", "http:debug"
		tuner.tune(c, &epoch.Spec{})
		if diff := cmp.Diff(step.want, got, cmp.AllowUnexported(told{})); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
		if stands := len(board.Conditions()) > 0; stands != step.condition {
			t.Errorf("%s: conditions %+v", step.name, board.Conditions())
		}
	}
}
