package journal

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/sys/unix"
)

// Logs are the loggers of the agent and of Envoy's forwarded lines.
type Logs struct {
	Agent   *slog.Logger // with limits for lines that repeat
	Envoy   *slog.Logger
	journal *Journal // nil: the loggers write to a stream
}

// LogOptions configure Logs.
type LogOptions struct {
	Output      io.Writer           // receives the lines unless they go to the journal
	Format      string              // [log] format
	Level       slog.Leveler        // of the agent
	EnvoyLevel  slog.Leveler        // of Envoy's lines
	Environment func(string) string // looks up JOURNAL_STREAM
	Program     string              // SYSLOG_IDENTIFIER; "" = outriderd
	Instance    string
}

// closeTime bounds the final flush to the journal.
const closeTime = 2 * time.Second

// OpenLogs opens the logs. The format auto selects the journal if Output is connected to it, colour
// on a terminal, and JSON otherwise.
func OpenLogs(o LogOptions) (Logs, error) {
	file, isFile := o.Output.(*os.File)
	required := o.Format == "journal"
	if required || o.Format == "auto" && isFile && isJournalStream(file, o.Environment) {
		opened, err := Open(Options{Level: o.Level, Program: cmp.Or(o.Program, "outriderd"),
			Instance: o.Instance})
		if err == nil {
			return Logs{Agent: slog.New(newLimited(opened.Handler())),
				Envoy: slog.New(opened.HandlerAt(o.EnvoyLevel)), journal: opened}, nil
		}
		if required {
			return Logs{}, fmt.Errorf("log.format = \"journal\": %w", err)
		}
	}
	return Logs{Agent: slog.New(newLimited(NewStreamHandler(o.Output, o.Format, o.Level))),
		Envoy: slog.New(NewStreamHandler(o.Output, o.Format, o.EnvoyLevel))}, nil
}

// Close sends the lines that wait, within closeTime.
func (l Logs) Close() {
	if l.journal != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		l.journal.Close(ctx)
	}
}

// NewStreamHandler returns a handler that writes to a stream: text in colour on a terminal or for
// the format tint, otherwise JSON.
func NewStreamHandler(out io.Writer, format string, level slog.Leveler) slog.Handler {
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
