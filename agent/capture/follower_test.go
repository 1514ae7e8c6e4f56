package capture

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// noEnvoy is an Envoy that is not live.
type noEnvoy struct{}

func (noEnvoy) Serves() (live, drains bool) { return false, false }
func (noEnvoy) Changed() <-chan struct{}    { return nil }

func follower(board *condition.Board, settings Settings) *Follower {
	return NewFollower(FollowerOptions{Settings: &settings, Board: board, Envoy: noEnvoy{},
		Users: testUsers, Logger: slog.New(slog.DiscardHandler)})
}

// With fail = "closed", a trial that ended and a drain send connections direct.
func TestFollower_SaysWhatHappensInstead(t *testing.T) {
	for closed, want := range map[bool]string{true: "are refused", false: "go direct"} {
		board := condition.NewBoard()
		f := follower(board, Settings{FailClosed: true})
		f.set(&Client{}, Status{State: Withdrawn, Closed: closed})
		if all := board.Conditions(); len(all) != 1 || all[0].Severity != condition.Error ||
			!strings.Contains(all[0].Sentence, want) {
			t.Errorf("closed %t: %+v", closed, all)
		}
	}
}

// Before Envoy is live, the refusal of outrider-capture-early.service is shown, and a configuration
// that was changed meanwhile ends it.
func TestFollower_EarlyRefusal(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	closed := captureAll
	closed.FailClosed = true
	r.apply(closed)
	const refused = "dial tcp 10.2.0.1:80: connect: connection refused"
	r.answers(time.Second, refused)
	during := func(settings Settings, shown string, closed bool) {
		t.Helper()
		board := condition.NewBoard()
		f := follower(board, settings)
		f.Socket, f.FollowerOptions.State = r.socket(), filepath.Join(r.folder, "state.json")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		parts.Eventually(t, 5*time.Second, shown, func() bool {
			all := board.Conditions()
			return f.State().Closed == closed && len(all) == 1 &&
				strings.Contains(all[0].Sentence, shown)
		})
		cancel()
		<-done
	}
	during(closed, "new connections are refused", true)
	during(captureAll, "connections go direct", false)
	r.answers(time.Second, "far 80")
}

// A stop sends outbound connections direct at once and inbound ones later, also if the helper ends
// meanwhile.
func TestFollower_LeavesOutboundFirst(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	f := follower(condition.NewBoard(), captureAll)
	f.Envoy, f.Socket, f.FollowerOptions.State = liveEnvoy{}, r.socket(),
		filepath.Join(r.folder, "state.json")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	r.answers(10*time.Second, "15001")
	again := func() {
		t.Helper()
		r.kill(r.helper)
		r.start()
		parts.Eventually(t, 5*time.Second, "the helper has another PID", func() bool {
			return f.State().PID == r.helper.Process.Pid
		})
	}
	end := f.Leave(ctx, time.Hour)
	r.answers(time.Second, "far 80")
	again()
	r.captures(On)
	if answer := r.answer(); answer != "far 80" {
		t.Errorf("an outbound connection is captured: %s", answer)
	}
	end()
	r.captures(Withdrawn)
	again()
	parts.Eventually(t, 5*time.Second, "the rules stay away", func() bool {
		return f.State().State == Withdrawn
	})
	r.captures(Withdrawn)
	cancel()
	<-done
}

// With fail = "closed", the tables are those that are in force.
func TestFollower_TablesOfClosed(t *testing.T) {
	f := follower(condition.NewBoard(), captureDNS)
	for want, status := range map[string]Status{
		"[outrider-dns outrider]": {State: Withdrawn, DNS: DNSStatus{State: Withdrawn}},
		"[outrider-closed]":       {State: Withdrawn, Closed: true, DNS: DNSStatus{State: Withdrawn}},
		"[outrider-dns outrider outrider-closed]": {State: On, Closed: true,
			DNS: DNSStatus{State: On}},
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

// A unit that runs in another slice than system.slice is found there.
func TestFollower_TablesWithUnit(t *testing.T) {
	slice := newUnit(t, fmt.Sprintf("outrider-test-%d.slice", os.Getpid()))
	shop := newUnit(t, slice.Path+"/shop.service")
	only := captureAll
	only.Units = []string{slice.Name}
	f := follower(condition.NewBoard(), only)
	for unit, want := range map[string]Verdict{"shop.service": Outbound, "other.service": Direct} {
		tables, group := f.TablesWith(unit)
		got := Explain(Connection{Protocol: "tcp", Destination: netip.MustParseAddrPort(far[0] + ":80"),
			CGroup: group}, tables...)
		if got.Verdict != want || (group == shop.Path) != (unit == "shop.service") {
			t.Errorf("%s in %s is %+v, want %s", unit, group, got, want)
		}
	}
}
