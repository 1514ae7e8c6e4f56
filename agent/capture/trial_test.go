package capture

import (
	"path/filepath"
	"testing"
	"time"
)

func TestHelper_TrialEndsUnlessConfirmed(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	ctx := t.Context()
	if _, err := r.client.StartTrial(ctx, time.Second); err == nil {
		t.Error("a trial without settings")
	}
	r.apply(captureAll)
	r.answers(30*time.Second, "15001")
	if s, err := r.client.StartTrial(ctx, time.Second); err != nil || s.State != StateTrial {
		t.Errorf("%+v, %v", s, err)
	}
	r.answers(3*time.Second, "far 80")
	r.apply(captureAll) // a restarted agent applies its settings again: the trial remains expired
	if s, err := r.client.Status(ctx); err != nil || s.State != StateWithdrawn {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := r.client.StartTrial(ctx, time.Hour); err != nil {
		t.Error(err)
	}
	if s, err := r.client.ConfirmTrial(ctx); err != nil || s.State != StateOn {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := r.client.Withdraw(ctx); err != nil {
		t.Error(err)
	}
	r.answers(soon, "far 80")
}

// Settings with a trial are never in force for longer than the trial unless confirmed.
func TestHelper_TrialBeginsWithNewSettings(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	ctx := t.Context()
	state := func(want State) {
		t.Helper()
		if s, err := r.client.Status(ctx); err != nil || s.State != want {
			t.Errorf("%+v, %v; want %s", s, err, want)
		}
	}
	trial := captureAll
	trial.TrialDuration, trial.FailOutboundClosed, trial.DNSPort = 2*time.Second, true, dnsPort
	r.apply(trial)
	r.answers(soon, "15001")
	state(StateTrial)
	r.answers(3*time.Second,
		"far 80") // goes direct after the trial although FailOutboundClosed is set
	r.kill(r.helper)
	r.start()
	r.apply(trial) // a restarted agent applies the same settings again: no new trial
	state(StateWithdrawn)
	trial.TrialDuration, trial.ExcludeOutboundPorts = time.Minute, nil
	r.apply(trial)
	r.answers(soon, "15001")
	state(StateTrial)
	if _, err := r.client.ConfirmTrial(ctx); err != nil {
		t.Error(err)
	}
	trial.AgentPorts = append(trial.AgentPorts,
		15090) // not a key of [capture]: starts no new trial
	r.apply(trial)
	state(StateOn)
	trial.TrialDuration = 0 // no longer configured
	r.apply(trial)
	state(StateOn)
}

// The rules of an expired trial are in force again once the trial is removed from the
// configuration.
func TestHelper_ExpiredTrialEndsWithItsRemoval(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	trial := captureAll
	trial.TrialDuration = time.Second
	r.apply(trial)
	r.captures(StateWithdrawn)
	trial.TrialDuration = 0
	r.apply(trial)
	r.captures(StateOn)
	r.kill(r.helper)
	r.start()
	r.captures(StateOn)
}

// Setting the clock while outrider-capture restarts does not end a trial.
func TestHelper_TrialOutlivesClockStep(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	trial := captureAll
	trial.TrialDuration = time.Minute
	r.apply(trial)
	r.captures(StateTrial)
	r.kill(r.helper)
	path := filepath.Join(r.folder, "state.json")
	var m memory
	if err := m.load(path); err != nil {
		t.Fatal(err)
	}
	m.Until = m.Until.Add(-time.Hour)
	if err := m.save(path); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.captures(StateTrial)
}
