package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/systemd"
)

// jobPatience is how long systemd may take to answer before the agent logs what the stop waits
// for.
const jobPatience = 500 * time.Millisecond

// restarted reports whether the current job of the agent's unit is a restart. If the job cannot be
// read, restarted logs a warning and returns false: the agent treats the job as a stop.
func restarted(ctx context.Context, log *slog.Logger) bool {
	late := time.AfterFunc(jobPatience, func() {
		log.Warn("waiting for systemd to report whether it stops or restarts the agent; " +
			"Envoy serves meanwhile")
	})
	defer late.Stop()
	job, err := systemd.Manager{}.CurrentJob(ctx)
	if err != nil && ctx.Err() == nil {
		log.Warn("cannot determine whether systemd stops or restarts the agent, stopping Envoy too",
			"error", err)
	}
	return job == systemd.JobRestart
}

// agentEnd controls the end of the agent, and whether Envoy continues serving.
type agentEnd struct {
	stopping atomic.Bool
	restarts atomic.Bool   // systemd restarts the agent; Envoy continues serving
	quit     chan struct{} // buffered; receives requests for an orderly stop
	detach   func()        // ends the agent; Envoy continues serving
}

// requestStop requests an orderly stop.
func (l *agentEnd) requestStop() { notify(l.quit) }

// notify sends to a channel with a buffer of one, unless the buffer is full: a notification is then
// already pending.
func notify(receiver chan<- struct{}) {
	select {
	case receiver <- struct{}{}:
	default:
	}
}

// stopper stops the agent.
type stopper struct {
	*base
	life       *agentEnd
	state      *reloadState
	supervisor *epoch.Supervisor
	capture    *capture.Controller
	health     *health.Checker
	relay      *relay.Server
}

// stop drains and ends Envoy, then the agent. If systemd restarts the unit, only the agent ends. A
// second call aborts the drain.
func (s *stopper) stop(ctx context.Context, why string) {
	again := s.life.stopping.Swap(true)
	settings := s.state.InForce().Config.Envoy
	if !again && s.options.Config.RunsInUnit && restarted(ctx, s.logOf("systemd")) {
		s.life.restarts.Store(true)
		s.life.detach()
		return
	}
	if again {
		s.log.Warn("second stop signal: aborting drain", "by", why)
		s.capture.EndInterception(ctx, 0)
	} else {
		s.log.Info("stopping", "by", why)
		s.health.MarkLeaving(health.ReasonStopping) // clients in the mesh then send no new requests
		s.relay.EndAllButLatestStream()
		accepts := settings.TerminationDrainDuration // time in which Envoy accepts new connections
		if settings.ExitOnZeroActiveConnections {
			accepts = settings.MinimumDrainDuration
		}
		s.capture.EndInterception(ctx, accepts/2)
	}
	if err := s.supervisor.Stop(ctx, settings, again); err != nil && ctx.Err() == nil {
		s.log.Error("cannot stop Envoy", "error", err)
	}
}
