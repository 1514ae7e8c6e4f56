package bus

import (
	"fmt"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

const propertiesChanged = propertiesName + ".PropertiesChanged"

func TestChangedPropertiesAreTold(t *testing.T) {
	d, a := running(t)
	signals := serveChanges(t, d)
	a.change(
		func(s *api.Status) {
			s.State, s.Ready, s.NotReadyReason = "draining", false,
				"epoch 0 drains"
		})
	changed := next(t, signals, propertiesChanged)
	if changed.Path != managerPath {
		t.Errorf("path %s", changed.Path)
	}
	want := []any{managerInterface, map[string]dbus.Variant{"State": dbus.MakeVariant("draining"),
		"Ready":       dbus.MakeVariant(false),
		"ReadyReason": dbus.MakeVariant("epoch 0 drains")}, []string{}}
	if diff := cmp.Diff(want, changed.Body,
		cmp.AllowUnexported(dbus.Variant{}, dbus.Signature{})); diff != "" {
		t.Errorf("PropertiesChanged:\n%s", diff)
	}

	a.board.Raise("disk-full", condition.Error, "no room")
	changed = next(t, signals, propertiesChanged)
	if _, ok := changed.Body[1].(map[string]dbus.Variant)["Conditions"]; !ok {
		t.Errorf("a condition was told as %v", changed.Body)
	}

	a.set(func() { a.state.Discovery = api.Discovery{State: "connected", Address: "b:15012"} })
	a.board.Publish(condition.Event{Kind: condition.KindDiscoveryMoved})
	changed = next(t, signals, propertiesChanged)
	if changed.Body[1].(map[string]dbus.Variant)["DiscoveryAddress"].Value() != "b:15012" {
		t.Errorf("the signal of another upstream server has %v", changed.Body)
	}

	a.change(func(s *api.Status) { s.Epochs[0].State = "draining" })
	changed = next(t, signals, propertiesChanged)
	if changed.Path != epochPath(0) || changed.Body[0] != epochInterface {
		t.Errorf("an epoch's state was told as %v", changed)
	}
}

func TestFiguresAreMeasuredOnlyWhenTheyAreRead(t *testing.T) {
	d, a := running(t)
	a.set(func() { a.figures = Epoch{Connections: 8} })
	for range 5 {
		d.must(0, "get-property", wellKnownName, manager+"/epoch/0", epochInterface, "PID")
	}
	a.set(func() {
		if a.measured != 0 {
			t.Errorf("measured %d times for nobody", a.measured)
		}
	})
	if got := d.must(0, "get-property", wellKnownName, manager+"/epoch/0", epochInterface,
		"ActiveConnections"); got != "t 8" {
		t.Errorf("ActiveConnections %s", got)
	}
	a.set(func() {
		if a.measured != 1 {
			t.Errorf("measured %d times for one reader", a.measured)
		}
	})
}

func TestEpochsComeAndGo(t *testing.T) {
	d, a := running(t)
	signals := serveChanges(t, d)
	a.change(func(s *api.Status) {
		s.Epochs = append(s.Epochs,
			Epoch{ID: "b", Number: 1, State: "starting", PID: 1, Started: someTime})
	})
	a.board.Publish(condition.Event{Kind: condition.KindEpochStarted, Epoch: number(1)})
	added := next(t, signals, objectManagerName+".InterfacesAdded")
	if added.Path != managerPath || added.Body[0] != epochPath(1) {
		t.Errorf("added: %v", added)
	}
	values := added.Body[1].(map[string]map[string]dbus.Variant)[epochInterface]
	if len(values) != 12 {
		t.Errorf("an added epoch has %d properties", len(values))
	}
	started := next(t, signals, managerInterface+".EpochStarted")
	if diff := cmp.Diff([]any{uint32(1), epochPath(1)}, started.Body); diff != "" {
		t.Errorf("EpochStarted:\n%s", diff)
	}

	// A new epoch with the number of a previous one has the same path, but is a different object.
	a.change(func(s *api.Status) { s.Epochs[1].ID = "c" })
	if removed := next(t, signals,
		objectManagerName+".InterfacesRemoved"); removed.Body[0] != epochPath(1) {
		t.Errorf("removed: %v", removed)
	}
	next(t, signals, objectManagerName+".InterfacesAdded")

	a.change(func(s *api.Status) { s.Epochs = s.Epochs[:1] })
	removed := next(t, signals, objectManagerName+".InterfacesRemoved")
	if diff := cmp.Diff([]any{epochPath(1), []string{epochInterface}}, removed.Body); diff != "" {
		t.Errorf("InterfacesRemoved:\n%s", diff)
	}
	if out, err := d.busctl(0, "get-property", wellKnownName, manager+"/epoch/1", epochInterface,
		"PID"); err == nil {
		t.Errorf("an epoch that is gone answers: %s", out)
	}
}

func TestOfEpochsThatShareANumberTheLivingIsShown(t *testing.T) {
	shown := newSnapshot(api.Status{Epochs: []Epoch{
		{ID: "new", Number: 0, State: "live", Started: someTime},
		{ID: "older", Number: 0, State: "exited", Started: someTime.Add(-time.Hour),
			Exited: someTime},
		{ID: "late", Number: 0, State: "exited", Started: someTime.Add(time.Hour),
			Exited: someTime.Add(2 * time.Hour)},
	}}, "")
	if id := shown.objects[epochPath(0)].id; id != "new" {
		t.Errorf("shown is %q", id)
	}
	if len(shown.epochs) != 1 || shown.epochs[0].State != "live" {
		t.Errorf("listed are %v", shown.epochs)
	}
}

// TestAReloadsEndIsToldAfterItsID checks that a client receives the ID of its reload before the
// signal ReloadFinished, even if the agent publishes the end of the reload first, as its fake does.
func TestAReloadsEndIsToldAfterItsID(t *testing.T) {
	d, _ := running(t)
	conn := d.connect()
	signals := make(chan *dbus.Signal, 100)
	conn.Signal(signals)
	if err := conn.AddMatchSignal(dbus.WithMatchMember("ReloadFinished")); err != nil {
		t.Fatal(err)
	}
	for want := uint64(1); want <= 50; want++ {
		call := conn.Object(wellKnownName,
			managerPath).Call(managerInterface+".Reload", 0, uint64(0))
		var id uint64
		if err := call.Store(&id); err != nil || id != want {
			t.Fatalf("reload %d: %v", id, err)
		}
		finished := next(t, signals, managerInterface+".ReloadFinished")
		if finished.Sequence < call.ResponseSequence {
			t.Fatalf("the end of reload %d was told before its id", id)
		}
		if diff := cmp.Diff([]any{id, "restarted", uint32(1), []string{},
			[]string{"bus.enabled", "dns.enabled"}}, finished.Body); diff != "" {
			t.Fatalf("ReloadFinished:\n%s", diff)
		}
	}
}

// TestAProxyThatIsNotReadyIsAskedAgain checks that readiness, for which no event exists, is polled.
func TestAProxyThatIsNotReadyIsAskedAgain(t *testing.T) {
	d, a := running(t)
	signals := serveChanges(t, d)
	a.change(func(s *api.Status) { s.Ready = false })
	next(t, signals, propertiesChanged)
	a.set(func() { a.state.Ready = true }) // without signalling Changed
	changed := next(t, signals, propertiesChanged)
	if value := changed.Body[1].(map[string]dbus.Variant)["Ready"]; value.Value() != true {
		t.Errorf("told: %v", changed.Body)
	}
}

func TestAnIdleAgentIsNotLookedAt(t *testing.T) {
	d, a := running(t)
	d.must(0, "get-property", wellKnownName, manager, managerInterface, "Version")
	looks := func() (n int) { a.set(func() { n = a.looks }); return n }
	// If the agent is suspended, it may refresh its state after the reply to busctl. The test
	// therefore waits for any second without a refresh.
	eventually(t, "a second without a look at an agent that does nothing", func() bool {
		before, quiet := looks(), true
		parts.RepeatFor(time.Second, 50*time.Millisecond, func() {
			quiet = quiet && looks() == before
		})
		return quiet
	})
}

// TestManyChangesAreFewSignals checks that intermediate values cause no signals.
func TestManyChangesAreFewSignals(t *testing.T) {
	d, a := running(t)
	signals := serveChanges(t, d)
	for i := range 2000 {
		a.change(func(s *api.Status) { s.LastReload = &api.LastReload{Reasons: []string{fmt.Sprint("error ", i)}} })
	}
	told := 0
	for {
		changed := next(t, signals, propertiesChanged)
		told++
		if changed.Body[1].(map[string]dbus.Variant)["LastError"].Value() == "error 1999" {
			break
		}
	}
	if told > 200 {
		t.Errorf("%d signals for 2000 changes at once", told)
	}
}
