package journal

import (
	"context"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/repeat"
)

// How many lines with one message a minute are logged: in all, and of one class. A class has the same
// attributes, but for digits in texts.
var (
	problemLimits = repeat.Limits{Class: 1, All: 20} // warnings and errors
	eventLimits   = repeat.Limits{Class: 3, All: 20} // those with a message ID
	otherLimits   = repeat.Limits{Class: 300, All: 300}
)

// limited bounds the lines of a handler, so that no error in a loop and no request of others fills
// the journal. A line has the number of omitted ones with the same message before it. Debug lines
// are not limited, nor those of EventLog, whose board has limits.
type limited struct {
	slog.Handler
	limiter *repeat.Limiter
	with    string // class of the attributes of WithAttrs
}

func newLimited(inner slog.Handler) slog.Handler {
	return &limited{Handler: inner, limiter: &repeat.Limiter{}}
}

// WithAttrs returns a handler that adds the attributes to all lines.
func (l *limited) WithAttrs(attributes []slog.Attr) slog.Handler {
	class := l.with
	for _, a := range attributes {
		class += classOf(a)
	}
	return &limited{l.Handler.WithAttrs(attributes), l.limiter, class}
}

// WithGroup returns a handler that prefixes the keys of further attributes.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{l.Handler.WithGroup(name), l.limiter, l.with}
}

// Handle passes a line on if the limits allow it.
func (l *limited) Handle(ctx context.Context, record slog.Record) error {
	limits, class, problem := otherLimits, "", record.Level >= slog.LevelWarn
	if problem {
		limits, class = problemLimits, l.with
	}
	free := record.Level < slog.LevelInfo
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == "event" {
			free = free || ofEvents(a.Value.String())
			if problem {
				limits = eventLimits
			}
		}
		if problem {
			class += classOf(a)
		}
		return true
	})
	if free {
		return l.Handler.Handle(ctx, record)
	}
	omitted, ok := l.limiter.Allow(time.Now(), repeat.ErrorClass(record.Message), class, limits)
	if !ok {
		return nil
	}
	if omitted > 0 {
		record = record.Clone()
		record.AddAttrs(slog.Int("omitted", omitted))
	}
	return l.Handler.Handle(ctx, record)
}

// classOf returns an attribute's part of a class. Numbers count, because they are users or epochs,
// except PIDs.
func classOf(a slog.Attr) string {
	switch a.Value.Kind() {
	case slog.KindInt64, slog.KindUint64:
		if a.Key == "pid" {
			return ""
		}
		return " " + a.Key + "=" + a.Value.String()
	default:
		return " " + a.Key + "=" + repeat.ErrorClass(a.Value.String())
	}
}
