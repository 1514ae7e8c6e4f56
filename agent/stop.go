package agent

import (
	"context"
	"time"

	"outrider.org/outrider/agent/systemd"
)

// jobPatience is how long systemd may take to answer before the agent logs what the stop waits
// for.
const jobPatience = 500 * time.Millisecond

// restarted reports whether the current job of the agent's unit is a restart. If the job cannot be
// read, restarted logs a warning and returns false: the agent treats the job as a stop.
func (a *Agent) restarted(ctx context.Context) bool {
	log := a.logOf("systemd")
	late := time.AfterFunc(jobPatience, func() {
		log.Warn("waiting for systemd to report whether this is a stop or a restart; " +
			"Envoy serves meanwhile")
	})
	defer late.Stop()
	job, err := systemd.Manager{}.Job(ctx)
	if err != nil && ctx.Err() == nil {
		log.Warn("cannot determine whether this is a stop or a restart: stopping, Envoy included",
			"error", err)
	}
	return job == systemd.Restart
}

// stop drains and ends Envoy, then the agent. If systemd restarts the unit, only the agent ends. A
// second call aborts the drain.
func (a *Agent) stop(ctx context.Context, why string) {
	again := a.stopping.Swap(true)
	settings := a.reloader.InForce().Config.Envoy
	if !again && a.options.Config.InUnit && a.restarted(ctx) {
		a.restarts.Store(true)
		a.detach()
		return
	}
	if again {
		a.log.Warn("second stop signal: aborting drain", "by", why)
		a.capture.Leave(ctx, 0)
	} else {
		a.log.Info("stopping", "by", why)
		a.health.Leave() // the mesh sends nothing new while Envoy drains
		a.relay.Leave()
		accepts := settings.TerminationDrainDuration // of Envoy, for new connections
		if settings.ExitOnZeroActiveConnections {
			accepts = settings.MinimumDrainDuration
		}
		a.capture.Leave(ctx, accepts/2)
	}
	if err := a.supervisor.Stop(ctx, stopOptions(settings, again)); err != nil && ctx.Err() == nil {
		a.log.Error("stop", "error", err)
	}
}
