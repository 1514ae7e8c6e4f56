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

// teller tells the service manager how the agent is, in the same words that all others are told.
type teller struct {
	backend
	notifier *systemd.Notifier
}

// tellEvery is how often the sentence is looked at while a phase lasts: what it waits for changes without an event.
const tellEvery = time.Second

// Name is the part's name.
func (t *teller) Name() string { return "teller" }

// Run tells every change until ctx ends.
func (t *teller) Run(ctx context.Context) error {
	events, cancel := t.board.Watch(64)
	defer cancel()
	var told uint64 // how many reloads had begun when it was looked last
	for {
		changed := t.supervisor.Changed()
		number := -1
		if live, ok := t.proxy.liveEpoch(); ok {
			number = live.Number
		}
		t.logs.setEpoch(number)
		begun := t.reloader.Reported()
		state, sentence := t.now()
		switch {
		case state == api.StateReloading:
			begun = t.reloader.Reported() // all of them are told by this one
		case begun != told && t.told():
			t.notifier.Set(systemd.Reloading, "reloading") // one that was over before it was looked at, as refusals are
		}
		told = begun
		t.notifier.Set(systemd.State(state), sentence)
		var tick <-chan time.Time
		var timer *time.Timer
		if state != api.StateRunning {
			timer = time.NewTimer(tellEvery)
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

// now is the agent's state, and in one sentence how that goes.
func (t *teller) now() (api.State, string) {
	state := t.state()
	live, serves := t.proxy.liveEpoch()
	switch {
	case state == api.StateStopping && serves:
		return state, fmt.Sprintf("stopping: epoch %d drains", live.Number)
	case state == api.StateStopping:
		return state, "stopping"
	case state == api.StateReloading:
		return state, t.reloader.Phase()
	case !serves:
		return api.StateStarting, t.proxy.notLive()
	}
	if ready, reason := t.proxy.Ready(); !ready && state == api.StateRunning && !t.told() {
		return api.StateStarting, reason
	}
	sentence := doing(live)
	conditions := t.board.Conditions()
	if len(conditions) > 0 {
		sentence += fmt.Sprintf("; %s: %s", conditions[0].Severity, conditions[0].Sentence)
	}
	if len(conditions) > 1 {
		sentence += fmt.Sprintf(" (and %d more: outrider status)", len(conditions)-1)
	}
	return state, sentence
}

// doing says what the live epoch does.
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

// told is whether the manager knows already that the agent is started.
func (t *teller) told() bool { return t.notifier.Announced() }

// beat returns once both loops that decide have turned: that of the reloads and that of the epochs.
func (a *Agent) beat(ctx context.Context) error {
	if err := a.reloader.Ping(ctx); err != nil {
		return fmt.Errorf("the reloads' loop: %w", err)
	}
	if err := a.supervisor.Ping(ctx); err != nil {
		return fmt.Errorf("the epochs' loop: %w", err)
	}
	return nil
}

// farewellTime bounds what is still told to the manager at the end.
const farewellTime = 500 * time.Millisecond

// farewell tells that the agent has ended, and why if that is an error: systemd shows it until the next start.
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
