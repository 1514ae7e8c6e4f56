package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// levels are a tuner and the Envoys that it is for: each has the levels that it was started with or told.
type levels struct {
	*tuner
	live  epoch.Epoch
	has   map[string]string
	sets  []string // whom a level was set, whether or not it was taken
	fails error    // whom it is set
	ended error    // the supervisor
}

func newLevels() *levels {
	l := &levels{has: map[string]string{}}
	l.tuner = &tuner{board: condition.NewBoard(), log: slog.New(slog.DiscardHandler),
		renew: func(_ context.Context, spec *epoch.Spec) (bool, error) {
			return l.live.ID != "" && l.has[l.live.ID] != spec.Hash, l.ended
		},
		live: func() (epoch.Epoch, bool) { return l.live, l.live.ID != "" },
		set: func(_ context.Context, e epoch.Epoch, level, components string) error {
			l.sets = append(l.sets, e.ID+" "+level+" "+components)
			return l.fails
		},
		told: func(_ context.Context, id string, spec *epoch.Spec) error {
			l.has[id] = spec.Hash
			return l.ended
		}}
	return l
}

// leveled is a configuration and its spec. The hash stands for the command line.
func leveled(level string) (*config.Config, *epoch.Spec) {
	c := &config.Config{}
	c.Envoy.LogLevel, c.Envoy.ComponentLogLevel = level, "http:debug"
	return c, &epoch.Spec{Hash: level}
}

func (l *levels) expect(t *testing.T, when string, condition bool, sets ...string) {
	t.Helper()
	if diff := cmp.Diff(sets, l.sets); diff != "" {
		t.Errorf("%s: %s", when, diff)
	}
	if stands := len(l.board.Conditions()) > 0; stands != condition {
		t.Errorf("%s: conditions %+v", when, l.board.Conditions())
	}
	l.sets = nil
}

func TestLogLevelsAreToldToWhomHasOthers(t *testing.T) {
	l := newLevels()
	l.live.ID, l.has = "a", map[string]string{"a": "info", "b": "debug", "c": "info"}
	l.follow()
	l.expect(t, "nothing is in force yet", false)
	l.tune(leveled("info"))
	l.expect(t, "it has them", false)
	l.tune(leveled("debug"))
	l.expect(t, "it has others", false, "a debug http:debug")
	l.fails = errors.New("gone")
	l.tune(leveled("error"))
	l.expect(t, "it does not take them", true, "a error http:debug")
	l.follow()
	l.expect(t, "it is not told again and again", true)
	l.tune(leveled("error"))
	l.expect(t, "still not", true, "a error http:debug")
	l.live.ID = ""
	l.follow()
	l.tune(leveled("debug"))
	l.expect(t, "nobody serves", true)
	l.fails, l.live.ID = nil, "b"
	l.follow()
	l.expect(t, "the next one has them", false)
	l.live.ID = "c"
	l.follow()
	l.follow()
	l.expect(t, "one that was started before has others", false, "c debug http:debug")
	l.ended = epoch.ErrEnded
	l.tune(leveled("info"))
	l.expect(t, "the supervisor has ended", false)
}

// A cure that was starting while levels were changed got live with others, and no reload speaks of it.
func TestAnEpochThatGetsLiveByItselfIsToldTheLevelsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newReloads(t), newLevels()
		changed := make(chan struct{})
		r.changed, r.follow = func() <-chan struct{} { r.mu.Lock(); defer r.mu.Unlock(); return changed }, l.follow
		r.enact = func(_ *config.Loaded, won *prepared) { l.tune(leveled(won.loaded.Config.Envoy.LogLevel)) }
		getsLive := func(id, has string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			l.live.ID, l.has[id] = id, has
			close(changed)
			changed = make(chan struct{})
		}
		l.tuner.live = func() (epoch.Epoch, bool) { r.mu.Lock(); defer r.mu.Unlock(); return l.live, l.live.ID != "" }
		getsLive("a", "warning")
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		l.fails = errors.New("its admin interface is gone")
		r.write(t, "[envoy]\nlog_level = \"info\"\n")
		r.ask(t, reload{reason: "levels", ifChanged: true})
		l.expect(t, "while the cure starts", true, "a info http:debug")
		l.fails = nil
		getsLive("cure", "warning")
		synctest.Wait()
		l.expect(t, "the cure is live", false, "cure info http:debug")

		release := r.holdEpochs()
		r.write(t, "[envoy]\nlog_level = \"debug\"\n")
		outcome := r.beginOf(t, &reload{reason: "asked for"})
		synctest.Wait()
		getsLive("asked for", "debug")
		synctest.Wait()
		l.expect(t, "what it was started for is not in force yet", false)
		release()
		<-outcome
		l.expect(t, "it is", false)
	})
}
