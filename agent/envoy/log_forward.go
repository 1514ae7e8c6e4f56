package envoy

import (
	"context"
	"log/slog"
)

// LevelTrace is the slog level of Envoy's trace lines. Handlers for Envoy's lines use it as their
// minimum level, because envoy.log_level already determines which lines Envoy writes; log.level
// does not apply to them.
const LevelTrace = slog.LevelDebug - 4

// levelCritical is the slog level of Envoy's critical lines.
const levelCritical = slog.LevelError + 4

// LogForwarder forwards the log lines of all Envoys, without quotes of their configuration. It must
// be used by one goroutine.
type LogForwarder struct {
	lines   *slog.Logger          // for Envoy's lines
	log     *slog.Logger          // log of the agent itself
	readers map[string]*logReader // by ID of the epoch
	ended   string                // ID of the last epoch that exited
}

// LogBatch is a batch of lines of one Envoy.
type LogBatch struct {
	ID      string // ID of the epoch
	Epoch   int    // number of the epoch
	PID     int    // 0: unknown
	Lines   []string
	Dropped uint64 // number of lines lost before this batch
}

// logReader is the state of reading one Envoy's log.
type logReader struct {
	redactor logRedactor
	parser   logParser
	routine  routineLineFilter
	pid      int // 0 if unknown
}

// NewLogForwarder returns a LogForwarder that writes Envoy's lines to lines, and reports to log how
// many lines it omitted.
func NewLogForwarder(lines, log *slog.Logger) *LogForwarder {
	return &LogForwarder{lines: lines, log: log, readers: map[string]*logReader{}}
}

// Forward logs a batch if enabled.
func (f *LogForwarder) Forward(batch LogBatch, enabled bool) {
	if f.readers[batch.ID] == nil {
		f.readers[batch.ID] = &logReader{}
	}
	reader := f.readers[batch.ID]
	if batch.Dropped > 0 {
		reader.redactor.markGap()
		f.log.Warn("lines of Envoy's log were lost: the agent was too slow",
			"epoch", batch.Epoch, "lines", batch.Dropped)
	}
	if reader.pid == 0 {
		reader.pid = batch.PID
	}
	if !enabled {
		reader.redactor.markGap()
		return
	}
	for _, line := range reader.parser.Parse(reader.redactor.redact(batch.Lines)) {
		level := slogLevel(line.Level)
		if reader.routine.Matches(line) {
			level = min(level, slog.LevelDebug)
			if !f.log.Enabled(context.Background(), level) { // log.level applies to routine lines
				continue
			}
		}
		f.write(level, batch.Epoch, reader.pid, line)
	}
	f.reportRedacted(reader.redactor.removedLines(false), batch.Epoch)
}

// EndEpochLog ends the log of an epoch. The epoch's last lines may still follow, because its exit
// may be reported before them.
func (f *LogForwarder) EndEpochLog(id string, epoch int) {
	if reader := f.readers[id]; reader != nil {
		f.reportRedacted(reader.redactor.removedLines(true), epoch)
	}
	delete(f.readers, f.ended)
	f.ended = id
}

func (f *LogForwarder) reportRedacted(lines, epoch int) {
	if lines > 0 {
		f.log.Warn("omitted lines of Envoy's log, which may quote its configuration",
			"lines", lines, "epoch", epoch)
	}
}

// write logs one line with its component, epoch and process.
func (f *LogForwarder) write(level slog.Level, epoch, pid int, line logLine) {
	attributes := []slog.Attr{slog.String("component", "envoy"), slog.Int("epoch", epoch)}
	if pid != 0 {
		attributes = append(attributes, slog.Int("pid", pid))
	}
	if line.Component != "" {
		attributes = append(attributes, slog.String("envoy_component", line.Component))
	}
	f.lines.LogAttrs(context.Background(), level, line.Message, attributes...)
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
