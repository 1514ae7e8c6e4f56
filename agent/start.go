package agent

import (
	"context"
	"slices"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// starter requests the first epoch.
type starter struct {
	*base
	state      *reloadState
	claims     *hostClaims
	maker      blueprint.Builder
	bootstraps *bootstraps
	supervisor *epoch.Supervisor
	proxy      *epoch.Proxy
	reloader   *reloader
	watched    *configWatch // nil if disabled
}

// begin waits for the bootstrap, files and ports that Envoy needs, then requests the first epoch
// unless an adopted one already matches the configuration. It returns an error if no Envoy serves
// and none can start.
func (s *starter) begin(ctx context.Context) error {
	files, err := s.startFiles(ctx)
	if err != nil {
		return nil //nolint:nilerr // the agent ends
	}
	current := s.state.InForce()
	if s.watched != nil {
		s.watched.configure(current, files)
	}
	i := current.Config.Identity
	if i.Provider == "files" {
		files = append(slices.Clone(files), i.CertFile, i.KeyFile, i.RootCAFile)
	}
	if s.awaitFiles(ctx, current.Config, files) != nil {
		return nil //nolint:nilerr // the agent ends
	}
	if s.awaitPorts(ctx) != nil {
		return nil //nolint:nilerr // the agent ends
	}
	start := &reload{reason: "start", ifChanged: true, first: true}
	result, err := s.reloader.do(ctx, start)
	s.readAgain(ctx, current)
	refused := err == nil && ctx.Err() == nil && result.Outcome == api.OutcomeRefused
	if refused && start.err != nil && !s.serves(ctx) {
		return start.err // no epoch could be requested and no Envoy serves
	}
	select {
	case <-time.After(idleAfter):
		if err := returnMemory(); err != nil {
			s.log.Debug("cannot return unused memory to the kernel after the start", "error", err)
		}
	case <-ctx.Done():
	}
	return nil
}

// idleAfter is the time after the first epoch's start when the agent returns memory to the kernel.
const idleAfter = 2 * time.Second

// servesPoll is the polling interval of serves. It polls because the supervisor may give up an
// attempt to start an epoch without a change of its epochs.
const servesPoll = time.Second

// serves waits while the supervisor recovers an earlier epoch. It reports whether an epoch is live
// or ctx has ended.
func (s *starter) serves(ctx context.Context) bool {
	for {
		changed := s.supervisor.Changed()
		if _, live := s.proxy.Epoch(); live || ctx.Err() != nil {
			return true
		}
		if !s.supervisor.ServesOrRecovers() {
			return ctx.Err() != nil
		}
		select {
		case <-changed:
		case <-time.After(servesPoll):
		case <-ctx.Done():
		}
	}
}

// readAgain requests a reload if the configuration files have changed after they were loaded and
// before they were watched.
func (s *starter) readAgain(ctx context.Context, started *config.Loaded) {
	if s.watched == nil {
		return
	}
	if now, err := config.Load(s.options.Config); err != nil || now.Hash != started.Hash {
		// The reloader logs the outcome and raises a condition if it refuses the configuration.
		_, _ = s.reloader.Reload(ctx, "changed while outriderd started",
			api.ReloadRequest{IfChanged: true}, nil)
	}
}
