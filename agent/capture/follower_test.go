package capture

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// noEnvoy is an Envoy that is not live.
type noEnvoy struct{}

func (noEnvoy) Serves() (live, drains bool) { return false, false }
func (noEnvoy) Changed() <-chan struct{}    { return nil }

func follower(board *condition.Board, settings Settings) *Follower {
	return NewFollower(FollowerOptions{Settings: &settings, Board: board, Envoy: noEnvoy{},
		Users: testUsers, Logger: slog.New(slog.DiscardHandler)})
}

// With fail = "closed", a trial that ended and a drain send connections direct.
func TestFollower_SaysWhatHappensInstead(t *testing.T) {
	for closed, want := range map[bool]string{true: "are refused", false: "go direct"} {
		board := condition.NewBoard()
		f := follower(board, Settings{FailClosed: true})
		f.set(&Client{}, Status{State: Withdrawn, Closed: closed})
		if all := board.Conditions(); len(all) != 1 || all[0].Severity != condition.Error ||
			!strings.Contains(all[0].Sentence, want) {
			t.Errorf("closed %t: %+v", closed, all)
		}
	}
}

// Before Envoy is live, the refusal of outrider-capture-early.service is shown, and a configuration
// that was changed meanwhile ends it.
func TestFollower_EarlyRefusal(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	closed := captureAll
	closed.FailClosed = true
	r.apply(closed)
	const refused = "dial tcp 10.2.0.1:80: connect: connection refused"
	r.answers(time.Second, refused)
	during := func(settings Settings, shown string, closed bool) {
		t.Helper()
		board := condition.NewBoard()
		f := follower(board, settings)
		f.Socket, f.FollowerOptions.State = r.socket(), filepath.Join(r.folder, "state.json")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		parts.Eventually(t, 5*time.Second, shown, func() bool {
			all := board.Conditions()
			return f.State().Closed == closed && len(all) == 1 &&
				strings.Contains(all[0].Sentence, shown)
		})
		cancel()
		<-done
	}
	during(closed, "new connections are refused", true)
	during(captureAll, "connections go direct", false)
	r.answers(time.Second, "far 80")
}
