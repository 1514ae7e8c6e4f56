package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/mesh"
)

// eventLogBuffer is the number of events that may wait to be logged; one mesh change publishes
// fewer.
const eventLogBuffer = 256

// eventLog logs conditions and mesh problems, so that the journal has every problem that a person
// must act on. The other events are logged where they happen, with more detail.
type eventLog struct {
	board *condition.Board
	log   *slog.Logger
}

// Name returns the name of the part.
func (l *eventLog) Name() string { return "event log" }

// Run logs until ctx ends.
func (l *eventLog) Run(ctx context.Context) error {
	events, cancel := l.board.Watch(eventLogBuffer)
	defer cancel()
	var last uint64
	for _, event := range l.board.Events(0) { // published before Watch
		l.write(event)
		last = event.Sequence
	}
	for {
		select {
		case event := <-events:
			if event.Sequence <= last {
				continue
			}
			if lost := event.Sequence - last - 1; lost > 0 {
				l.log.Warn("events not logged: too many at once", "events", lost)
			}
			last = event.Sequence
			l.write(event)
		case <-ctx.Done():
			return nil
		}
	}
}

// write logs one event at the level of its severity. Events other than conditions and mesh problems
// are skipped.
func (l *eventLog) write(event condition.Event) {
	code, severity := event.Fields["code"], condition.Severity(event.Fields["severity"])
	attributes := []any{"event", event.Kind}
	switch event.Kind {
	case condition.KindConditionRaised, condition.KindConditionCleared:
		if loggedByItsPart(code) {
			return
		}
		attributes = append(attributes, "condition", code)
	case condition.KindMeshProblem:
		for _, key := range []string{"file", "line"} { // the sentence names them
			if value := event.Fields[key]; value != "" {
				attributes = append(attributes, "config_"+key, value)
			}
		}
	default:
		return
	}
	l.log.Log(context.Background(), severityLevel(severity), event.Sentence, attributes...)
}

// loggedByItsPart reports whether the part that raises a condition logs the same problem itself.
func loggedByItsPart(code string) bool {
	codes := []string{conditionRefused, discovery.ConditionProblems, epoch.ConditionGaveUp}
	return slices.Contains(codes, code) ||
		strings.HasPrefix(code, mesh.ConditionRefused(""))
}

func severityLevel(severity condition.Severity) slog.Level {
	switch severity {
	case condition.Error:
		return slog.LevelError
	case condition.Warning:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}
