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

// levels is a levelSetter with fake Envoys, and the levels each was started with or set to.
type levels struct {
	*levelSetter
	live  epoch.Epoch
	has   map[string]string
	sets  []string // requests to Envoy, successful or not
	fails error    // of these requests
	ended error    // of requests to the supervisor
}

func newLevels() *levels {
	l := &levels{has: map[string]string{}}
	l.levelSetter = &levelSetter{
		supervisor: l, board: condition.NewBoard(), log: slog.New(slog.DiscardHandler),
		admin: func(e epoch.Epoch) levelAdmin { return adminOf{l, e.ID} },
	}
	return l
}

// The methods below implement levelSupervisor and levelAdmin.

func (l *levels) Live() (epoch.Epoch, epoch.Admin, bool) { return l.live, nil, l.live.ID != "" }

func (l *levels) Renew(_ context.Context, spec *epoch.Spec) (bool, error) {
	return l.live.ID != "" && l.has[l.live.ID] != spec.Hash, l.ended
}

func (l *levels) Tuned(_ context.Context, id string, spec *epoch.Spec) error {
	l.has[id] = spec.Hash
	return l.ended
}

type adminOf struct {
	*levels
	id string
}

func (a adminOf) SetLogLevels(_ context.Context, level, components string) error {
	a.sets = append(a.sets, a.id+" "+level+" "+components)
	return a.fails
}

func (l *levels) tune(t *testing.T, level string) {
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
	l.follow(t.Context())
	l.expect(t, "nothing is in force yet", false)
	l.tune(t, "info")
	l.expect(t, "it has them", false)
	l.tune(t, "debug")
	l.expect(t, "it has others", false, "a debug http:debug")
	l.fails = errors.New("gone")
	l.tune(t, "error")
	l.expect(t, "it does not take them", true, "a error http:debug")
	l.follow(t.Context())
	l.expect(t, "it is not told again and again", true)
	l.tune(t, "error")
	l.expect(t, "still not", true, "a error http:debug")
	l.live.ID = ""
	l.follow(t.Context())
	l.tune(t, "debug")
	l.expect(t, "nobody serves", true)
	l.fails, l.live.ID = nil, "b"
	l.follow(t.Context())
	l.expect(t, "the next one has them", false)
	l.live.ID = "c"
	l.follow(t.Context())
	l.follow(t.Context())
	l.expect(t, "one that was started before has others", false, "c debug http:debug")
	l.ended = epoch.ErrEnded
	l.tune(t, "info")
	l.expect(t, "the supervisor has ended", false)
}

// An epoch that was starting while the levels changed becomes live with the old ones, and without a
// reload.
func TestAnEpochThatGetsLiveByItselfIsToldTheLevelsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := newReloads(t), newLevels()
		r.changed = make(chan struct{})
		r.follow = func() { r.mu.Lock(); defer r.mu.Unlock(); l.follow(t.Context()) }
		r.liveID = func() string { return l.live.ID }
		r.enact = func(won *prepared, _ func(string)) {
			r.mu.Lock()
			defer r.mu.Unlock()
			l.tune(t, won.loaded.Config.Envoy.LogLevel)
		}
		getsLive := func(id, has string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			l.live.ID, l.has[id] = id, has
			close(r.changed)
			r.changed = make(chan struct{})
		}
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
