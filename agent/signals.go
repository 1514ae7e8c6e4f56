package agent

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/driver"
	"outrider.org/outrider/agent/epoch"
)

// signals receives the signals that the agent handles.
type signals struct {
	received chan os.Signal
	stop     func()
}

// catchSignals registers the handler, so that a signal during the start is neither lost nor fatal.
func catchSignals() signals {
	received := make(chan os.Signal, 16)
	signal.Notify(received, unix.SIGHUP, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	return signals{received: received, stop: func() { signal.Stop(received) }}
}

// obey handles signals and stop requests until ctx ends. Each runs in its own goroutine: a stop
// does not wait for a reload, nor a second SIGTERM for the first.
func (a *Agent) obey(ctx context.Context, signals signals) error {
	var running errgroup.Group
	defer func() { _ = running.Wait() }()
	do := func(work func()) { running.Go(func() error { work(); return nil }) }
	for {
		select {
		case received := <-signals.received:
			switch received {
			case unix.SIGHUP:
				// The reloader logs the outcome.
				do(func() { _, _ = a.reloader.Reload(ctx, "SIGHUP", false, nil) })
			case unix.SIGUSR1:
				do(func() { a.reopenLogs(ctx) })
			default:
				do(func() { a.stop(ctx, signalName(received)) })
			}
		case <-a.quit:
			do(func() { a.stop(ctx, "/quitquitquit") })
		case <-ctx.Done():
			return nil
		}
	}
}

// signalName returns "SIGTERM" instead of "terminated".
func signalName(received os.Signal) string {
	if number, ok := received.(unix.Signal); ok {
		return unix.SignalName(number)
	}
	return received.String()
}

// reopenLogs makes every running epoch reopen its access logs.
func (a *Agent) reopenLogs(ctx context.Context) {
	for _, e := range a.supervisor.Epochs() {
		if e.State == epoch.Exited {
			continue
		}
		if err := driver.NewAdmin(e.AdminAddress).ReopenLogs(ctx); err != nil {
			a.log.Warn("access logs were not reopened", "epoch", e.Number, "error", err)
			continue
		}
		a.log.Info("access logs reopened", "epoch", e.Number)
	}
}
