package driver

import (
	"context"
	"log/slog"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

// LevelTrace is the slog level of Envoy's trace lines. Handlers for Envoy's lines use it as their
// minimum, because envoy.log_level and not log.level selects these lines.
const LevelTrace = slog.LevelDebug - 4

// levelCritical is the slog level of Envoy's critical lines.
const levelCritical = slog.LevelError + 4

// envoyLogs forwards the log lines of all Envoys, without quotes of their configuration.
type envoyLogs struct {
	log     *slog.Logger         // the agent's own
	lines   *slog.Logger         // for Envoy's lines
	readers map[string]*envoyLog // by ID of the epoch
	ended   string               // ID of the last epoch that exited
}

// envoyLog is the state of reading one Envoy's log.
type envoyLog struct {
	redactor envoy.LogRedactor
	parser   envoy.LogParser
	routine  envoy.Routine
	pid      int // 0 if unknown
}

// forward logs a batch of lines of the process pid (0: unknown) if enabled.
func (l *envoyLogs) forward(batch *keeper.Log, pid int, enabled bool) {
	if l.readers[batch.ID] == nil {
		l.readers[batch.ID] = &envoyLog{}
	}
	reader := l.readers[batch.ID]
	if batch.Dropped > 0 {
		reader.redactor.Lost()
		l.log.Warn("lines of Envoy's log were lost: the agent was too slow",
			"epoch", batch.Epoch, "lines", batch.Dropped)
	}
	if reader.pid == 0 {
		reader.pid = pid
	}
	if !enabled {
		reader.redactor.Lost()
		return
	}
	for _, line := range reader.parser.Parse(reader.redactor.Take(batch.Lines)) {
		level := slogLevel(line.Level)
		if reader.routine.Is(line) {
			level = min(level, slog.LevelDebug)
			if !l.log.Enabled(context.Background(), level) { // log.level applies to routine lines
				continue
			}
		}
		l.write(level, batch.Epoch, reader.pid, line)
	}
	l.reportRedacted(reader.redactor.LeftOut(false), batch.Epoch)
}

// exited ends the log of an epoch. Its last lines may follow, because exits are delivered first.
func (l *envoyLogs) exited(p *keeper.Process) {
	if reader := l.readers[p.ID]; reader != nil {
		l.reportRedacted(reader.redactor.LeftOut(true), p.Number)
	}
	delete(l.readers, l.ended)
	l.ended = p.ID
}

func (l *envoyLogs) reportRedacted(lines, epoch int) {
	if lines > 0 {
		l.log.Warn("omitted lines of Envoy's log, which may quote its configuration",
			"lines", lines, "epoch", epoch)
	}
}

// write logs one line with its component, epoch and process.
func (l *envoyLogs) write(level slog.Level, epoch, pid int, line envoy.LogLine) {
	attributes := []slog.Attr{slog.String("component", "envoy"), slog.Int("epoch", epoch)}
	if pid != 0 {
		attributes = append(attributes, slog.Int("pid", pid))
	}
	if line.Component != "" {
		attributes = append(attributes, slog.String("envoy_component", line.Component))
	}
	l.lines.LogAttrs(context.Background(), level, line.Message, attributes...)
}

// slogLevel maps Envoy's levels to slog's.
func slogLevel(level string) slog.Level {
	switch level {
	case "trace":
		return LevelTrace
	case "debug":
		return slog.LevelDebug
	case "info":
		return slog.LevelInfo
	case "warning", "warn":
		return slog.LevelWarn
	case "critical":
		return levelCritical
	default:
		return slog.LevelError
	}
}
