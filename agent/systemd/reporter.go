package systemd

import (
	"context"
	"errors"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// StatusReporter reports the agent's state and a status sentence to the service manager.
type StatusReporter struct {
	lifecycle.Readiness
	Notifier   *Notifier
	Conditions *condition.Registry
	Agent      AgentState
}

// AgentState is the state that a StatusReporter reports.
type AgentState interface {
	// Summary returns the state and a status sentence. announced reports whether READY=1 was sent.
	Summary(announced bool) (state State, sentence string)
	// Changed returns a channel that is closed when the epochs change. The events of the
	// condition.Registry report all other changes.
	Changed() <-chan struct{}
	ReportedReloads() uint64 // number of reloads whose start was published
}

// statusInterval is the polling interval while the agent is not running normally: the sentence then
// changes without an event.
const statusInterval = time.Second

// Name returns the name of the component.
func (r *StatusReporter) Name() string { return "status reporter" }

// Run reports changes until ctx ends.
func (r *StatusReporter) Run(ctx context.Context) error {
	events, cancel := r.Conditions.Watch(64)
	defer cancel()
	r.MarkReady()
	var reported uint64 // number of reloads already reported to the manager
	for {
		changed := r.Agent.Changed()
		begun := r.Agent.ReportedReloads()
		state, sentence := r.Agent.Summary(r.Notifier.ReadySent())
		switch {
		case state == StateReloading:
			begun = r.Agent.ReportedReloads() // one RELOADING=1 covers all reloads in progress
		case begun != reported && r.Notifier.ReadySent():
			// a reload that ended before this poll, such as a refused one
			r.Notifier.SetState(StateReloading, "reloading")
		}
		reported = begun
		r.Notifier.SetState(state, sentence)
		var tick <-chan time.Time
		if state != StateRunning {
			tick = time.After(statusInterval)
		}
		for again := true; again; {
			again = false
			select {
			case <-changed:
			case event := <-events:
				// the state does not depend on secrets
				again = event.Kind == condition.KindSecretRotated
			case <-tick:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// endTime bounds sending the last messages to the manager.
const endTime = 500 * time.Millisecond

// NotifyExit notifies the manager of the agent's end. With an error, systemd shows the error until
// the next start.
func (n *Notifier) NotifyExit(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		n.Fail(err)
	} else {
		n.SetState(StateStopping, "stopped")
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	n.Close(ctx)
}
