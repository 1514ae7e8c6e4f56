package bus

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

func (a *agent) condition(code string) (found condition.Condition, ok bool) {
	for _, c := range a.board.Conditions() {
		if c.Code == code {
			return c, true
		}
	}
	return condition.Condition{}, false
}

func TestTheBusMayComeLateAndRestart(t *testing.T) {
	t.Parallel()
	d, a := newDaemon(t), newAgent()
	server, _ := a.start(t, d)
	eventually(t, "it is told that there is no bus", func() bool {
		c, ok := a.condition(conditionUnavailable)
		return ok && c.Severity == condition.Info
	})
	d.start()
	await(t, server.Ready(), "the name is taken on a bus that came late")
	for restart := range 3 {
		eventually(t, "the condition ends",
			func() bool { _, ok := a.condition(conditionUnavailable); return !ok })
		d.must(0, "call", wellKnownName, manager, managerInterface, "Undrain")
		d.stop()
		eventually(t, "the loss is told",
			func() bool { _, ok := a.condition(conditionUnavailable); return ok })
		a.change(func(s *api.Status) { s.Epochs[0].PID = 5000 + restart }) // while no bus runs
		d.start()
		eventually(t, "the agent is back", func() bool {
			_, err := d.busctl(nobody, "get-property", wellKnownName, manager+"/epoch/0",
				epochInterface, "PID")
			return err == nil
		})
		signals := serveChanges(t, d)
		a.board.Publish(condition.Event{Kind: condition.KindDraining})
		next(t, signals, managerInterface+".Draining")
	}
}

func TestASecondAgentWaitsForTheName(t *testing.T) {
	t.Parallel()
	d, first := startDaemon(t), newAgent()
	server, stop := first.start(t, d)
	await(t, server.Ready(), "the name is taken")
	second := newAgent()
	second.state.Version = "second"
	waiting, _ := second.start(t, d)
	eventually(t, "the second tells that the name is taken",
		func() bool { _, ok := second.condition(conditionNameOwned); return ok })
	if got := d.must(0, "get-property", wellKnownName, manager, managerInterface,
		"Version"); got != `s "1.2.3"` {
		t.Errorf("the first was thrown out: %s", got)
	}
	stop()
	await(t, waiting.Ready(), "the second has the name")
	eventually(t, "its condition ends",
		func() bool { _, ok := second.condition(conditionNameOwned); return !ok })
	if got := d.must(0, "get-property", wellKnownName, manager, managerInterface,
		"Version"); got != `s "second"` {
		t.Errorf("the second answers %s", got)
	}
}

func TestTheEndIsStillTold(t *testing.T) {
	t.Parallel()
	d, a := startDaemon(t), newAgent()
	server, stop := a.start(t, d)
	await(t, server.Ready(), "the name is taken")
	signals := serveChanges(t, d)
	a.board.Publish(condition.Event{Kind: condition.KindEpochExited, Epoch: number(0),
		Fields: map[string]string{"cause": "stopped", "status": "0"}})
	stop()
	next(t, signals, managerInterface+".EpochExited")
}

func TestABusThatDoesNotReadEndsTheSessionOnly(t *testing.T) {
	t.Parallel()
	d, a := running(t)
	resume := parts.PauseProcess(t, d.command.Process.Pid)
	for range 100 {
		// the signal exceeds the socket buffer, so the agent cannot send it to the paused bus
		a.change(func(s *api.Status) { s.LastReload = &api.LastReload{Reasons: []string{strings.Repeat("x", 1<<20)}} })
		a.board.Publish(condition.Event{Kind: condition.KindDraining})
	}
	eventually(t, "the stuck bus is left",
		func() bool { _, ok := a.condition(conditionUnavailable); return ok })
	resume()
	eventually(t, "the agent returns",
		func() bool { _, ok := a.condition(conditionUnavailable); return !ok })
}

// TestThePolicy checks the installed policy on a real bus.
func TestThePolicy(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	request := func(uid uint32, name string) (string, error) {
		return d.busctl(uid, "call", busName, "/org/freedesktop/DBus", busName, "RequestName",
			"su", name, "4")
	}
	for _, name := range []string{"org.outrider.Agent1", "org.outrider.Agent1.Instance._web"} {
		if out, err := request(nobody, name); err == nil {
			t.Errorf("anybody may be %s: %s", name, out)
		}
		if out, err := request(0, name); err != nil || out != "u 1" {
			t.Errorf("root may not be %s: %v %s", name, err, out)
		}
	}
	if out, err := request(0, "org.outrider.Agent2"); err == nil {
		t.Errorf("the policy allows another name: %s", out)
	}
}

func TestABusThatDoesNotTakeUsIsAWarning(t *testing.T) {
	t.Parallel()
	d, a := newDaemon(t), newAgent()
	d.configure("org.outrider.Agent1.conf", "org.outrider.Agent1.conf.missing")
	d.configure(`ignore_missing="no"`, `ignore_missing="yes"`)
	d.start()
	a.start(t, d)
	eventually(t, "a warning names the file", func() bool {
		c, ok := a.condition(conditionUnavailable)
		return ok && c.Severity == condition.Warning &&
			strings.Contains(c.Sentence, "org.outrider.Agent1.conf")
	})
}
