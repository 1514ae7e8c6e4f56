package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/journal"
)

// levelEnvoyCritical is what Envoy calls critical: above slog's error.
const levelEnvoyCritical = slog.LevelError + 4

// levelEnvoyTrace lets every line of Envoy's through: which it writes is [envoy] log_level's to say, not [log] level's.
const levelEnvoyTrace = slog.LevelDebug - 4

// logs are where the agent's lines and Envoy's go.
type logs struct {
	agent, envoy *slog.Logger
	setEpoch     func(number int) // of lines that name no epoch; -1 = none is live
	close        func()
}

// openLog returns where a [log] format writes. auto is the journal where standard error goes there (so under
// systemd), colour on a terminal and JSON elsewhere.
func openLog(options Options, format string, level *slog.LevelVar) (logs, error) {
	file, isFile := options.Output.(*os.File)
	wanted := format == "journal"
	if wanted || format == "auto" && isFile && journal.Connected(file, options.environment()) {
		opened, err := journal.Open(journal.Options{Level: level, Program: "outriderd", Instance: options.Config.Instance})
		if err == nil {
			return logs{
				agent: slog.New(opened.Handler()), envoy: slog.New(opened.HandlerAt(levelEnvoyTrace)), setEpoch: opened.SetEpoch,
				close: func() {
					ctx, cancel := context.WithTimeout(context.Background(), logCloseTime)
					defer cancel()
					opened.Close(ctx)
				},
			}, nil
		}
		if wanted {
			return logs{}, fmt.Errorf("log.format = \"journal\": %w", err)
		}
	}
	return logs{
		agent: slog.New(newLogHandler(options.Output, format, level)), envoy: slog.New(newLogHandler(options.Output, format, levelEnvoyTrace)),
		setEpoch: func(int) {}, close: func() {},
	}, nil
}

// logOf is the log of a part: its lines say which part wrote them (OUTRIDER_COMPONENT= in the journal). What package agent writes
// itself is the component "agent".
func (a *Agent) logOf(part string) *slog.Logger { return a.log.With("component", part) }

// logCloseTime bounds waiting at the end for the journal to take the last lines.
const logCloseTime = 2 * time.Second

// newLogHandler returns the handler of a stream.
func newLogHandler(out io.Writer, format string, level slog.Leveler) slog.Handler {
	if format == "tint" || format == "auto" && isTerminal(out) {
		return tint.NewTextHandler(out, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !isTerminal(out) || os.Getenv("NO_COLOR") != ""})
	}
	return slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// slogLevel turns a [log] level into slog's.
func slogLevel(level string) slog.Level {
	switch level {
	case "debug":
		return slog.LevelDebug
	case "warn", "warning":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// envoyLevel turns Envoy's level of a line into slog's, so that one stream can be filtered by one scale.
func envoyLevel(level string) slog.Level {
	switch level {
	case "trace":
		return levelEnvoyTrace
	case "debug":
		return slog.LevelDebug
	case "info":
		return slog.LevelInfo
	case "warning", "warn":
		return slog.LevelWarn
	case "critical":
		return levelEnvoyCritical
	default:
		return slog.LevelError
	}
}

// logEnvoyLine logs one of Envoy's own lines with its component, epoch and process; pid 0 is unknown.
func logEnvoyLine(log *slog.Logger, level slog.Level, epoch, pid int, line envoy.LogLine) {
	attributes := []slog.Attr{slog.String("component", "envoy"), slog.Int("epoch", epoch)}
	if pid != 0 {
		attributes = append(attributes, slog.Int("pid", pid))
	}
	if line.Component != "" {
		attributes = append(attributes, slog.String("envoy_component", line.Component))
	}
	log.LogAttrs(context.Background(), level, line.Message, attributes...)
}
