package agent

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/lifecycle"
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

// signalHandler handles signals and stop requests.
type signalHandler struct {
	lifecycle.Readiness
	signals    signals
	stopper    *stopper
	reloader   *reloader
	supervisor *epoch.Supervisor
	log        *slog.Logger
}

// Name returns the component's name.
func (*signalHandler) Name() string { return "signals" }

// Run handles signals until ctx ends. Each signal has a goroutine of its own, so that a stop does
// not wait for a reload, and a second SIGTERM does not wait for the first.
func (h *signalHandler) Run(ctx context.Context) error {
	h.MarkReady()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case received := <-h.signals.received:
			switch received {
			case unix.SIGHUP:
				// The reloader logs the outcome.
				running.Go(func() { _, _ = h.reloader.Reload(ctx, "SIGHUP", api.ReloadRequest{}, nil) })
			case unix.SIGUSR1:
				running.Go(func() { h.reopenLogs(ctx) })
			default:
				running.Go(func() { h.stopper.stop(ctx, signalName(received)) })
			}
		case <-h.stopper.life.quit:
			running.Go(func() { h.stopper.stop(ctx, "/quitquitquit") })
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
func (h *signalHandler) reopenLogs(ctx context.Context) {
	for _, e := range h.supervisor.Epochs() {
		if e.State == epoch.StateExited {
			continue
		}
		if err := envoy.NewAdmin(e.AdminAddress).ReopenLogs(ctx); err != nil {
			h.log.Warn("cannot reopen Envoy's access logs", "epoch", e.Number, "error", err)
			continue
		}
		h.log.Info("access logs reopened", "epoch", e.Number)
	}
}
