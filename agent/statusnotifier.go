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

// statusNotifier reports the agent's state to the service manager, in the words of the status.
type statusNotifier struct {
	backend
	notifier *systemd.Notifier
}

// statusInterval is how often the sentence is looked at while a phase lasts: what it waits for changes
// without an event.
const statusInterval = time.Second

// Name is the part's name.
func (n *statusNotifier) Name() string { return "status notifier" }

// Run reports changes until ctx ends.
func (n *statusNotifier) Run(ctx context.Context) error {
	events, cancel := n.board.Watch(64)
	defer cancel()
	var told uint64 // how many reloads had begun when it was looked last
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
			begun = n.reloader.Reported() // all of them are told by this one
		case begun != told && n.announced():
			// one that was over before it was looked at, as refusals are
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

// now returns the agent's state and a sentence about it.
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
		return fmt.Sprintf("epoch %d drains until the undrain is done: %s", live.Number, live.Awaits)
	case live.Drained:
		return fmt.Sprintf("epoch %d drains on request", live.Number)
	default:
		return fmt.Sprintf("epoch %d serves", live.Number)
	}
}

// announced reports whether the manager has got READY=1.
func (n *statusNotifier) announced() bool { return n.notifier.Announced() }

// beat returns once both owners have run: that of reloads and that of epochs. It feeds the watchdog.
func (a *Agent) beat(ctx context.Context) error {
	if err := a.reloader.Ping(ctx); err != nil {
		return fmt.Errorf("the reloads' loop: %w", err)
	}
	if err := a.supervisor.Ping(ctx); err != nil {
		return fmt.Errorf("the epochs' loop: %w", err)
	}
	return nil
}

// farewellTime bounds the last messages to the manager.
const farewellTime = 500 * time.Millisecond

// farewell tells that the agent has ended, and why if that is an error: systemd shows it until the
// next start.
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
