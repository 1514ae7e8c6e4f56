package systemd

import (
	"context"
	"testing"
	"testing/synctest"

	"outrider.org/outrider/agent/condition"
)

// summaries is an AgentState that counts calls of Summary.
type summaries int

func (s *summaries) Summary(bool) (State, string) { *s++; return StateRunning, "" }
func (s *summaries) Changed() <-chan struct{}     { return nil }
func (s *summaries) ReportedReloads() uint64      { return 0 }

func TestReporter_IgnoresRotatedSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked summaries
		board := condition.NewRegistry()
		notifier := newNotifier(t, Options{Environment: func(string) string { return "" }})
		ctx, cancel := context.WithCancel(t.Context())
		go (&StatusReporter{Notifier: notifier, Conditions: board, Agent: &asked}).Run(ctx)
		synctest.Wait()
		for _, step := range []struct {
			kind string
			want summaries
		}{
			{condition.KindEpochLive, 2}, {condition.KindSecretRotated, 2}, {condition.KindEpochLive, 3},
		} {
			board.Publish(condition.Event{Kind: step.kind})
			synctest.Wait()
			if asked != step.want {
				t.Errorf("after %s: asked %d times, want %d", step.kind, asked, step.want)
			}
		}
		cancel()
		synctest.Wait()
	})
}
