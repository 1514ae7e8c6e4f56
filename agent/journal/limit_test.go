package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/condition"
)

func TestLimited_ErrorsInALoopAreOneLineAMinute(t *testing.T) {
	for name, test := range map[string]struct {
		log  func(log *slog.Logger, i int)
		want int // lines in three minutes
	}{
		"one error": {func(log *slog.Logger, i int) {
			log.Error("no connection", "pid", i, "error", fmt.Errorf("dial 10.0.0.9:%d: refused", i))
		}, 3},
		"two users": {func(log *slog.Logger, i int) {
			log.Warn("refused a request", "uid", i%2, "pid", i)
		}, 6},
		"any texts": {func(log *slog.Logger, i int) {
			log.Warn("refused a request", "path", string([]rune{rune('a' + i%1000)}))
		}, 60},
		"any numbers": {func(log *slog.Logger, i int) { log.Error("refused", "uid", i) }, 60},
		"messages with numbers": {func(log *slog.Logger, i int) {
			log.Warn(fmt.Sprintf("lost %d lines", i))
		}, 3},
		"with a message ID": {func(log *slog.Logger, i int) {
			log.Error("refused", "event", condition.KindReloadRefused)
		}, 9},
		"information":     {func(log *slog.Logger, i int) { log.Info("request", "uid", i) }, 900},
		"events of Board": {func(log *slog.Logger, i int) { log.Error("x", "event", condition.KindConditionRaised) }, 9000},
		"debug":           {func(log *slog.Logger, i int) { log.Debug("push") }, 9000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var output bytes.Buffer
				logs, err := OpenLogs(LogOptions{Output: &output, Format: "json", Level: slog.LevelDebug,
					EnvoyLevel: slog.LevelDebug})
				if err != nil {
					t.Fatal(err)
				}
				log := logs.Agent.With("component", "test")
				for i := range 9000 {
					test.log(log, i)
					time.Sleep(20 * time.Millisecond)
				}
				if got := bytes.Count(output.Bytes(), []byte("\n")); got != test.want {
					t.Errorf("%d lines, want %d", got, test.want)
				}
			})
		})
	}
}

func TestLimited_CountsWhatIsOmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var output bytes.Buffer
		log := slog.New(newLimited(slog.NewJSONHandler(&output, nil)))
		for range 100 {
			log.Error("no connection", "error", errors.New("refused"))
		}
		log.Error("no connection", "error", errors.New("timeout"))
		time.Sleep(time.Minute)
		log.Error("no connection", "error", errors.New("refused"))
		var omitted []int
		for decoder := json.NewDecoder(&output); decoder.More(); {
			var line struct{ Omitted int }
			if err := decoder.Decode(&line); err != nil {
				t.Fatal(err)
			}
			omitted = append(omitted, line.Omitted)
		}
		if fmt.Sprint(omitted) != "[0 99 0]" {
			t.Errorf("omitted %v", omitted)
		}
	})
}
