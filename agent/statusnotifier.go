package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/systemd"
)

// statusNotifier reports the agent's state and a status sentence to the service manager.
type statusNotifier struct {
	backend
	notifier *systemd.Notifier
}

// statusInterval is the polling interval while the agent is not running normally: the sentence then
// changes without an event.
const statusInterval = time.Second

// Name returns the name of the part.
func (n *statusNotifier) Name() string { return "status notifier" }

// Run reports changes until ctx ends.
func (n *statusNotifier) Run(ctx context.Context) error {
	events, cancel := n.board.Watch(64)
	defer cancel()
	var told uint64 // number of reloads already reported to the manager
	for {
		changed := n.supervisor.Changed()
		number := -1
		if live, ok := n.proxy.liveEpoch(); ok {
			number = live.Number
		}
		n.logs.setEpoch(number)
		begun := n.reloader.Reported()
		state, sentence := n.now()
		switch {
		case state == api.StateReloading:
			begun = n.reloader.Reported() // one RELOADING covers all of them
		case begun != told && n.announced():
			// a reload that ended before this poll, such as a refused one
			n.notifier.Set(systemd.Reloading, "reloading")
		}
		told = begun
		n.notifier.Set(systemd.State(state), sentence)
		var tick <-chan time.Time
		var timer *time.Timer
		if state != api.StateRunning {
			timer = time.NewTimer(statusInterval)
			tick = timer.C
		}
		select {
		case <-changed:
		case <-events:
		case <-tick:
		case <-ctx.Done():
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// now returns the agent's state and its status sentence.
func (n *statusNotifier) now() (api.State, string) {
	state := n.state()
	live, serves := n.proxy.liveEpoch()
	switch {
	case state == api.StateStopping && serves:
		return state, fmt.Sprintf("stopping: epoch %d drains", live.Number)
	case state == api.StateStopping:
		return state, "stopping"
	case state == api.StateReloading:
		return state, n.reloader.Phase()
	case !serves:
		return api.StateStarting, n.proxy.notLive()
	}
	if ready, reason := n.proxy.Ready(); !ready && state == api.StateRunning && !n.announced() {
		return api.StateStarting, reason
	}
	sentence := doing(live)
	conditions := n.board.Conditions()
	if len(conditions) > 0 {
		sentence += fmt.Sprintf("; %s: %s", conditions[0].Severity, conditions[0].Sentence)
	}
	if len(conditions) > 1 {
		sentence += fmt.Sprintf(" (and %d more: outrider status)", len(conditions)-1)
	}
	return state, sentence
}

// doing describes the live epoch.
func doing(live epoch.Epoch) string {
	switch {
	case live.Drained && live.Awaits != "":
		return fmt.Sprintf("epoch %d drains until the undrain is done: %s", live.Number,
			live.Awaits)
	case live.Drained:
		return fmt.Sprintf("epoch %d drains on request", live.Number)
	default:
		return fmt.Sprintf("epoch %d serves", live.Number)
	}
}

// announced reports whether READY=1 was sent to the manager.
func (n *statusNotifier) announced() bool { return n.notifier.Announced() }

// beat returns once the goroutines of the reloader and the supervisor have run. It feeds the
// watchdog.
func (a *Agent) beat(ctx context.Context) error {
	if err := a.reloader.Ping(ctx); err != nil {
		return fmt.Errorf("the reloads' loop: %w", err)
	}
	if err := a.supervisor.Ping(ctx); err != nil {
		return fmt.Errorf("the epochs' loop: %w", err)
	}
	return nil
}

// farewellTime bounds sending the last messages to the manager.
const farewellTime = 500 * time.Millisecond

// farewell sends the end of the agent to the manager, with the error if there is one: systemd shows
// it until the next start.
func farewell(notifier *systemd.Notifier, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		notifier.Fail(err)
	} else {
		notifier.Set(systemd.Stopping, "stopped")
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	notifier.Close(ctx)
}
