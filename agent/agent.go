// Package agent composes the components of Outrider. It orders their start and stop, derives their
// settings from the configuration, and runs a reload as one transaction. The details of a component
// are in its own package.
package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/fdstore"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/agent/systemd"
)

// Options configures one run of the agent.
type Options struct {
	Config  config.Options
	Version string
	Output  io.Writer // receives the log if it does not go to the journal
}

// Run runs the agent until a signal or a request stops it, or an error ends it. An *ExitError
// carries the exit code of the program. When ctx ends, Envoy continues serving, as after a crash;
// only a stop ends Envoy.
func Run(ctx context.Context, options Options) (err error) {
	debug.SetGCPercent(startGCPercent)
	options.Config.UnreadableReason = unreadable
	b := &base{options: options, started: time.Now(), level: &slog.LevelVar{},
		board: condition.NewRegistry(), store: fdstore.Open()}
	// The process has private keys in memory: forbid other processes of its user to read it, and
	// core dumps.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return exit(ExitInternal, fmt.Errorf("set PR_SET_DUMPABLE to 0: %w", err))
	}
	b.log = slog.New(journal.NewStreamHandler(options.Output, "auto", b.level))
	catching := sync.OnceValue(catchSignals)
	// Catch signals in the background while the configuration loads: Go changes the signal masks of
	// its threads one signal at a time, which is slow.
	go catching()
	defer func() { catching().stop() }()
	var composed *run // set before composed.run starts the notifier
	notifier := systemd.NewNotifier(systemd.Options{Environment: options.environment(),
		Ping:   func(ctx context.Context) error { return composed.ping(ctx) },
		Logger: b.logOf("systemd")})
	defer func() { notifier.NotifyExit(err) }()
	loaded, err := config.Load(options.Config)
	if err != nil {
		return exit(ExitConfiguration, err)
	}
	if err := b.openLogs(loaded.Config.Log); err != nil {
		return exit(ExitConfiguration, err)
	}
	defer b.logs.Close()
	if _, err := envoy.Find(loaded.Config.Envoy.Binary); err != nil && loaded.Config.Envoy.Enabled {
		return exit(ExitProgramMissing, err)
	}
	locked, err := prepare(loaded.Config)
	if err != nil {
		return err
	}
	defer func() { _ = locked.Close() }()

	received := catching() // from here, signals are delivered instead of ending the process
	ctx, detach := context.WithCancel(ctx)
	defer detach()
	life := &agentEnd{quit: make(chan struct{}, 1), detach: detach}
	if composed, err = compose(ctx, b, life, loaded, received, notifier); err != nil {
		return err
	}
	return composed.end(composed.run(ctx))
}

// environment returns the function that looks up environment variables.
func (o Options) environment() func(string) string {
	if o.Config.Environment != nil {
		return o.Config.Environment
	}
	return os.Getenv
}

// openLogs opens the logs that the [log] table of the configuration defines.
func (b *base) openLogs(c config.Log) (err error) {
	if err := b.level.UnmarshalText([]byte(c.Level)); err != nil {
		return err
	}
	b.logs, err = journal.OpenLogs(journal.LogOptions{Output: b.options.Output, Format: c.Format,
		Level: b.level, EnvoyLevel: envoy.LevelTrace, Environment: b.options.environment(),
		Instance: b.options.Config.Instance})
	if err == nil {
		b.log = b.logs.Agent
	}
	return err
}
