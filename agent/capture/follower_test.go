package capture

import (
	"log/slog"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
)

// With fail = "closed", a trial that ended and a drain send connections direct.
func TestFollower_SaysWhatHappensInstead(t *testing.T) {
	for closed, want := range map[bool]string{true: "are refused", false: "go direct"} {
		board := condition.NewBoard()
		f := NewFollower(FollowerOptions{Settings: &Settings{FailClosed: true}, Board: board,
			Logger: slog.New(slog.DiscardHandler)})
		f.set(&Client{}, Status{State: Withdrawn, Closed: closed})
		if all := board.Conditions(); len(all) != 1 || all[0].Severity != condition.Error ||
			!strings.Contains(all[0].Sentence, want) {
			t.Errorf("closed %t: %+v", closed, all)
		}
	}
}
