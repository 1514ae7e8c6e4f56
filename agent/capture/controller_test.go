package capture

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// noEnvoy is an Envoy that is not live.
type noEnvoy struct{}

func (noEnvoy) Serves() (live bool, half time.Time) { return false, time.Time{} }
func (noEnvoy) Changed() <-chan struct{}            { return nil }

// liveEnvoy is an Envoy that is live and, after drain was called, draining.
type liveEnvoy struct {
	dead    atomic.Bool
	half    atomic.Pointer[time.Time]
	changed chan struct{}
}

func (e *liveEnvoy) Changed() <-chan struct{} { return e.changed }

func (e *liveEnvoy) Serves() (live bool, half time.Time) {
	if at := e.half.Load(); at != nil {
		half = *at
	}
	return !e.dead.Load(), half
}

// drain sets the time at which half of a drain has passed; the zero time ends the drain.
func (e *liveEnvoy) drain(half time.Time) {
	e.half.Store(&half)
	e.changed <- struct{}{}
}

func testController(board *condition.Registry, settings Settings) *Controller {
	return NewController(ControllerOptions{Settings: &settings, Conditions: board, Envoy: noEnvoy{},
		Users: testUsers, Logger: slog.New(slog.DiscardHandler)})
}

// While outrider-capture does not run, every retry fails, but the condition is raised once and
// nothing else is logged.
func TestController_ReportsAMissingHelperOnce(t *testing.T) {
	board := condition.NewRegistry()
	var log parts.SyncBuffer
	settings := captureAll
	f := NewController(ControllerOptions{Settings: &settings, Conditions: board,
		Envoy: &liveEnvoy{},
		Users: testUsers, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Socket: filepath.Join(t.TempDir(), "absent.sock")})
	// not a context with a deadline: a dial could then fail with another error
	ctx, cancel := context.WithCancel(t.Context())
	defer time.AfterFunc(10*firstRetry, cancel).Stop()
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if events := board.Events(0); len(events) != 1 {
		t.Errorf("%d events: %+v", len(events), events)
	}
	if lines := strings.Count(log.String(), "level=ERROR"); lines != 0 {
		t.Errorf("%d lines: %s", lines, log.String())
	}
}

// With fail = "closed", connections still go direct after an expired trial and during a drain.
func TestController_SaysWhatHappensInstead(t *testing.T) {
	both := Settings{FailOutboundClosed: true, FailInboundClosed: true, Inbound: Ports{All: true}}
	for want, status := range map[string]Status{
		": connections go direct: ": {State: StateWithdrawn},
		": new connections are refused: ": {State: StateClosed, OutboundRejected: true,
			InboundRejected: true},
		": new inbound connections are refused":  {State: StateClosed, InboundRejected: true},
		": new outbound connections are refused": {State: StateWithdrawn, OutboundRejected: true},
	} {
		board := condition.NewRegistry()
		f := testController(board, both)
		f.set(&Client{}, status)
		if all := board.Conditions(); len(all) != 1 || all[0].Severity != condition.Error ||
			!strings.Contains(strings.Replace(all[0].Sentence, ", ", ": ", 1), want) {
			t.Errorf("%+v: %+v", status, all)
		}
	}
}

// Before Envoy is live, the status shows that outrider-capture-early.service rejects connections. A
// changed configuration ends the rejection.
func TestController_EarlyRefusal(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	closed := captureAll
	closed.FailOutboundClosed = true
	r.apply(closed)
	const refused = "dial tcp 10.2.0.1:80: connect: connection refused"
	r.answers(soon, refused)
	during := func(settings Settings, shown string, closed bool) {
		t.Helper()
		board := condition.NewRegistry()
		f := testController(board, settings)
		f.Socket, f.ControllerOptions.StateFile = r.socket(), filepath.Join(r.folder, "state.json")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		parts.Eventually(t, time.Minute, shown, func() bool {
			all := board.Conditions()
			return f.State().OutboundRejected == closed && len(all) == 1 &&
				strings.Contains(all[0].Sentence, shown)
		})
		cancel()
		<-done
	}
	during(closed, "new outbound connections are refused, inbound ones go direct", true)
	during(captureAll, "connections go direct", false)
	r.answers(soon, "far 80")
}

// leaver is a rig with a Controller whose Envoy drains and stops.
type leaver struct {
	*rig
	*Controller
	envoy *liveEnvoy
}

func newLeaver(t *testing.T) *leaver {
	t.Helper()
	l := &leaver{newRig(t), testController(condition.NewRegistry(), captureAll),
		&liveEnvoy{changed: make(chan struct{})}}
	l.startEnvoy()
	l.Envoy, l.Socket = l.envoy, l.socket()
	l.ControllerOptions.StateFile = filepath.Join(l.folder, "state.json")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	l.answers(30*time.Second, "15001")
	return l
}

// captured checks which server receives an outbound and an inbound connection.
func (l *leaver) captured(outbound, inbound string) {
	l.t.Helper()
	l.answers(30*time.Second, outbound)
	var answer string
	to := netip.AddrPortFrom(netip.MustParseAddr(here[0]), 80)
	l.other.RunOn(l.t, func() { answer = dial(l.t, "tcp", netip.Addr{}, to) })
	if answer != inbound {
		l.t.Errorf("inbound, %q answers, want %q", answer, inbound)
	}
}

// leaves checks that only inbound connections are captured, also after outrider-capture was
// replaced.
func (l *leaver) leaves() {
	l.t.Helper()
	l.captured("far 80", "15006")
	if shown := Explain(Connection{Protocol: "tcp", UID: appUser,
		Destination: netip.MustParseAddrPort(far[0] + ":80")}, l.Tables()...); shown.Decision != Direct {
		l.t.Errorf("outbound connections go direct, but are shown as %+v", shown)
	}
	l.again(StateOn)
	l.captured("far 80", "15006")
}

// again kills outrider-capture and waits until its successor reaches a state.
func (l *leaver) again(want State) {
	l.t.Helper()
	l.kill(l.helper)
	l.start()
	parts.Eventually(l.t, 5*time.Second, "the helper has another PID", func() bool {
		now := l.State()
		return now.PID == l.helper.Process.Pid && now.State == want
	})
	l.captures(want)
}

// An upgrade that replaces outrider-capture leaves the rules in force: no condition is raised, and
// no port is reported as reachable past Envoy. Until outrider-capture first answers, the rules are
// unknown.
func TestController_ReportsNothingWhileTheHelperIsReplaced(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	unknown := testController(condition.NewRegistry(), captureAll)
	if unknown.ReachableDirectly() != nil {
		t.Error("the rules are known before the helper has answered")
	}
	l := newLeaver(t)
	l.captures(StateOn)
	to := netip.AddrPortFrom(netip.MustParseAddr(here[0]), 80)
	parts.Eventually(t, time.Minute, "the controller knows the rules", func() bool {
		reach := l.ReachableDirectly()
		if reach == nil {
			return false
		}
		direct, _, _ := reach(to)
		return !direct
	})
	events, end := l.Conditions.Watch(64)
	defer end()
	client := func() *Client {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.Controller.client
	}
	before := client()
	if err := l.helper.Process.Signal(unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, time.Minute, "the next image answers", func() bool {
		if direct, why, _ := l.ReachableDirectly()(to); direct {
			t.Fatalf("direct: %s", why)
		}
		return client() != before
	})
	if len(events) > 0 {
		t.Errorf("%+v", <-events)
	}
}

// A stop ends the capture of outbound connections at once and that of inbound ones later.
func TestController_StopLeavesOutboundFirst(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	l := newLeaver(t)
	l.EndInterception(t.Context(), time.Hour)
	l.leaves()
	l.EndInterception(t.Context(), 0)
	l.captured("far 80", "here 80")
	l.again(StateWithdrawn)
}

// A drain ends the capture of outbound connections at once and that of inbound ones later. A stop
// that follows the drain does not prolong the capture, and an undrain restores it at any moment.
func TestController_DrainLeavesOutboundFirst(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	l := newLeaver(t)
	l.envoy.drain(time.Now().Add(time.Hour))
	l.leaves()
	l.envoy.drain(time.Time{})
	l.captured("15001", "15006")
	for range 2 {
		l.envoy.drain(time.Now().Add(time.Hour))
		l.captured("far 80", "15006")
		l.envoy.drain(time.Now().Add(100 * time.Millisecond))
		l.captures(StateWithdrawn)
		l.envoy.drain(time.Now().Add(time.Hour)) // another epoch replaces the draining one
		l.captured("far 80", "here 80")
		l.again(StateWithdrawn)
		l.envoy.drain(time.Time{})
		l.captured("15001", "15006")
	}
	l.envoy.drain(time.Now())
	l.captured("far 80", "here 80")
	l.EndInterception(t.Context(), time.Hour)
	l.captured("far 80", "here 80")
}

// While outrider-capture rejects connections, Tables returns only the tables in force; otherwise it
// also returns those that outrider-capture would install.
func TestController_TablesOfClosed(t *testing.T) {
	f := testController(condition.NewRegistry(), captureDNS)
	for want, status := range map[string]Status{
		"[outrider-dns outrider]": {State: StateWithdrawn, DNS: DNSStatus{State: StateWithdrawn}},
		"[outrider-closed]": {State: StateClosed, InboundRejected: true,
			DNS: DNSStatus{State: StateWithdrawn}},
		"[outrider-dns outrider outrider-closed]": {State: StateOn, OutboundRejected: true,
			DNS: DNSStatus{State: StateOn}},
	} {
		f.set(&Client{}, status)
		var names []string
		for _, table := range f.Tables() {
			names = append(names, table.Name)
		}
		if got := fmt.Sprint(names); got != want {
			t.Errorf("%+v: %s, want %s", status, got, want)
		}
	}
}

// TablesIfUnitRan finds a unit that runs in another slice than system.slice.
func TestController_TablesWithUnit(t *testing.T) {
	slice := newUnit(t, fmt.Sprintf("outrider-test-%d.slice", os.Getpid()))
	shop := newUnit(t, slice.Path+"/shop.service")
	only := captureAll
	only.Units = []string{slice.Name}
	f := testController(condition.NewRegistry(), only)
	for unit, want := range map[string]Decision{"shop.service": Outbound, "other.service": Direct} {
		tables, group := f.TablesIfUnitRan(unit)
		got := Explain(Connection{Protocol: "tcp", Destination: netip.MustParseAddrPort(far[0] + ":80"),
			CGroup: group}, tables...)
		if got.Decision != want || (group == shop.Path) != (unit == "shop.service") {
			t.Errorf("%s in %s is %+v, want %s", unit, group, got, want)
		}
	}
}
