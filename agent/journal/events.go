package journal

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// eventLogBuffer is the number of events that may wait to be logged; one mesh change publishes
// fewer.
const eventLogBuffer = 256

// EventLog logs conditions and mesh problems, so that the journal has every problem that a person
// must act on. It also sets the journal's default epoch to the live one. Other events are logged
// where they happen, with more detail.
type EventLog struct {
	lifecycle.Readiness
	Conditions *condition.Registry
	Log        *slog.Logger
	Logs       Logs
	LiveEpoch  LiveEpoch // nil: there is no Envoy
	// SkippedConditions are prefixes of the codes of conditions that EventLog skips, because the
	// component that raises them logs them itself.
	SkippedConditions []string
}

// LiveEpoch reports the live epoch. Changed returns a channel that is closed at its next change.
type LiveEpoch interface {
	EpochNumber() int // -1: none is live
	Changed() <-chan struct{}
}

// Name returns the name of the component.
func (l *EventLog) Name() string { return "event log" }

// Run logs until ctx ends.
func (l *EventLog) Run(ctx context.Context) error {
	events, cancel := l.Conditions.Watch(eventLogBuffer)
	defer cancel()
	l.MarkReady()
	var last uint64
	for _, event := range l.Conditions.Events(0) { // events published before the call of Watch
		l.write(event)
		last = event.Sequence
	}
	for {
		var changed <-chan struct{}
		if l.LiveEpoch != nil {
			changed = l.LiveEpoch.Changed()
			if l.Logs.journal != nil {
				l.Logs.journal.SetEpoch(l.LiveEpoch.EpochNumber())
			}
		}
		select {
		case <-changed:
		case event := <-events:
			if event.Sequence <= last {
				continue
			}
			if lost := event.Sequence - last - 1; lost > 0 {
				l.Log.Warn("events not logged: too many at once", "events", lost)
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
func (l *EventLog) write(event condition.Event) {
	code, severity := event.Fields["code"], condition.Severity(event.Fields["severity"])
	attributes := []any{"event", event.Kind}
	switch event.Kind {
	case condition.KindConditionRaised, condition.KindConditionCleared:
		if l.elsewhere(code) {
			return
		}
		attributes = append(attributes, "condition", code)
	case condition.KindMeshProblem:
		// the sentence already contains file and line
		for _, key := range []string{"file", "line"} {
			if value := event.Fields[key]; value != "" {
				attributes = append(attributes, "config_"+key, value)
			}
		}
	default:
		return
	}
	if omitted := event.Fields["omitted"]; omitted != "" {
		attributes = append(attributes, "omitted", omitted)
	}
	l.Log.Log(context.Background(), severityLevel(severity), event.Sentence, attributes...)
}

// ofEvents reports whether EventLog logs a kind of event.
func ofEvents(kind string) bool {
	switch kind {
	case condition.KindConditionRaised, condition.KindConditionCleared, condition.KindMeshProblem:
		return true
	}
	return false
}

// elsewhere reports whether the component that raises a condition logs the same problem itself.
func (l *EventLog) elsewhere(code string) bool {
	return slices.ContainsFunc(l.SkippedConditions,
		func(prefix string) bool { return strings.HasPrefix(code, prefix) })
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
