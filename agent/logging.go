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

	"outrider.org/outrider/agent/driver"
	"outrider.org/outrider/agent/journal"
)

// logs are the loggers of the agent and of Envoy's forwarded lines.
type logs struct {
	agent, envoy *slog.Logger
	setEpoch     func(number int) // sets the epoch of lines without one; -1: none is live
	close        func()
}

// openLog opens the logs in a [log] format. The format auto selects the journal if standard error
// is connected to it, colour on a terminal, and JSON otherwise.
func openLog(options Options, format string, level *slog.LevelVar) (logs, error) {
	file, isFile := options.Output.(*os.File)
	wanted := format == "journal"
	if wanted || format == "auto" && isFile && journal.Connected(file, options.environment()) {
		opened, err := journal.Open(journal.Options{Level: level, Program: "outriderd",
			Instance: options.Config.Instance})
		if err == nil {
			return logs{
				agent: slog.New(opened.Handler()),
				envoy: slog.New(opened.HandlerAt(driver.LevelTrace)), setEpoch: opened.SetEpoch,
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
		agent:    slog.New(newLogHandler(options.Output, format, level)),
		envoy:    slog.New(newLogHandler(options.Output, format, driver.LevelTrace)),
		setEpoch: func(int) {}, close: func() {},
	}, nil
}

// logOf returns the logger of a part, which adds the field component (OUTRIDER_COMPONENT= in the
// journal). Package agent itself logs as "agent".
func (a *Agent) logOf(part string) *slog.Logger { return a.log.With("component", part) }

// logCloseTime bounds the final flush to the journal.
const logCloseTime = 2 * time.Second

// newLogHandler returns a handler that writes to a stream.
func newLogHandler(out io.Writer, format string, level slog.Leveler) slog.Handler {
	if format == "tint" || format == "auto" && isTerminal(out) {
		return tint.NewTextHandler(out, &tint.Options{Level: level, TimeFormat: "15:04:05.000",
			NoColor: !isTerminal(out) || os.Getenv("NO_COLOR") != ""})
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

// slogLevel converts a [log] level to a slog.Level.
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
