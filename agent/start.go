package agent

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
)

// begin waits for the bootstrap, files and ports that Envoy needs, then requests the first epoch
// unless an adopted one already matches the configuration. It returns an error if no Envoy serves
// and none can start.
func (a *Agent) begin(ctx context.Context) error {
	files, err := a.startFiles(ctx)
	if err != nil {
		return nil //nolint:nilerr // the agent ends
	}
	current := a.reloader.InForce()
	if a.watched != nil {
		a.watched.configure(current, files)
	}
	i := current.Config.Identity
	if i.Provider == "files" {
		files = append(slices.Clone(files), i.CertFile, i.KeyFile, i.RootCAFile)
	}
	if a.awaitFiles(ctx, current.Config, files) != nil {
		return nil //nolint:nilerr // the agent ends
	}
	if a.awaitPorts(ctx) != nil {
		return nil //nolint:nilerr // the agent ends
	}
	start := &reload{reason: "start", ifChanged: true, first: true}
	result, err := a.reloader.do(ctx, start)
	a.readAgain(ctx, current)
	refused := err == nil && ctx.Err() == nil && result.Outcome == api.OutcomeRefused
	if refused && start.err != nil && !a.serves(ctx) {
		return start.err // the configuration is unusable and no Envoy serves
	}
	select {
	case <-time.After(settleAfter):
		debug.SetGCPercent(idleGCPercent)
		debug.FreeOSMemory()
	case <-ctx.Done():
	}
	return nil
}

const (
	// idleGCPercent is Go's GC percentage after the start. The agent then idles for days, so a
	// small heap is worth more than a little CPU time.
	idleGCPercent = 40

	// settleAfter is the time after the start when memory that only the start needed is returned.
	settleAfter = 2 * time.Second
)

// servesPoll is the polling interval of serves: an attempt can end without a change of the epochs.
const servesPoll = time.Second

// serves waits while the supervisor recovers an earlier epoch. It reports whether an epoch is live
// or ctx has ended.
func (a *Agent) serves(ctx context.Context) bool {
	for {
		changed := a.supervisor.Changed()
		if _, live := a.proxy.Epoch(); live || ctx.Err() != nil {
			return true
		}
		if !a.supervisor.Recovers() {
			return ctx.Err() != nil
		}
		select {
		case <-changed:
		case <-time.After(servesPoll):
		case <-ctx.Done():
		}
	}
}

// readAgain requests a reload if the configuration changed between its loading and the start of the
// watch.
func (a *Agent) readAgain(ctx context.Context, started *config.Loaded) {
	if a.watched == nil {
		return
	}
	if now, err := config.Load(a.options.Config); err != nil || now.Hash != started.Hash {
		// The reloader logs the outcome and raises a condition if it refuses the configuration.
		_, _ = a.reloader.Reload(ctx, "changed while outriderd started",
			api.ReloadRequest{IfChanged: true}, nil)
	}
}
