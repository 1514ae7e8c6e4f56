package journal

import (
	"context"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/repeat"
)

// Maximum numbers of lines with the same message per minute: in all, and of one class. The lines of
// a class have the same attributes, apart from digits in text values.
var (
	problemLimits = repeat.Limits{PerClass: 1, PerSubject: 20} // warnings and errors
	eventLimits   = repeat.Limits{PerClass: 3, PerSubject: 20} // lines with a message ID
	otherLimits   = repeat.Limits{PerClass: 300, PerSubject: 300}
)

// limited bounds the lines of a handler, so that neither an error in a loop nor requests of users
// can fill the journal. The next line with the same message states how many were omitted. Debug
// lines and those of EventLog, which condition.Registry bounds, are not limited.
type limited struct {
	slog.Handler
	limiter *repeat.Limiter
	with    string // part of the class that the attributes of WithAttrs determine
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

// classOf returns an attribute's contribution to the class of a line. Numeric values except PIDs
// are part of the class: lines about different users or epochs are counted apart.
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
