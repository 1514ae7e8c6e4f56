package epoch

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/keeper"
)

// noon is the time of all events in TestNext.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// host returns a state with epochs of one lineage, which have been live for a minute. epochs lists
// them, for example "1 live, 0 draining".
func host(epochs string, changes ...func(*state)) state {
	s := state{link: connected, config: defaults("/run/test"), idPrefix: "n"}
	for one := range strings.SplitSeq(epochs, ", ") {
		if one == "" {
			continue
		}
		number, name, _ := strings.Cut(one, " ")
		p := &process{launchState: launchState{spec: specOf("a"), hot: true}}
		_, _ = fmt.Sscan(number, &p.Number)
		p.ID, p.PID, p.RestartEpoch, p.State, p.SpecDigest = number, 100+p.Number, p.Number, State(name), "a"
		p.Started, p.LiveSince = noon.Add(-time.Minute), noon.Add(-time.Minute)
		p.AdminAddress = fmt.Sprintf("admin-%d.sock", p.Number)
		p.BootstrapPath = fmt.Sprintf("envoy-rev%d.json", p.Number)
		if p.State == StateDraining {
			p.endedBy, p.LatestDrainEnd = endedByChild, noon.Add(time.Second)
		}
		s.processes = append(s.processes, p)
	}
	if live := s.live(); live != nil {
		s.setLastForTest(live)
	}
	s.probe.at = noon.Add(time.Second)
	for _, change := range changes {
		change(&s)
	}
	s.status = s.classify()
	return s
}

func (s *state) setLastForTest(live *process) {
	m := machine{state: *s}
	m.setLast(live)
	m.lastGood = live.spec
	*s = m.state
}

// starts adds an attempt at a stage to a state: a start of epoch 1 with parent 0, or of the first
// epoch.
func starts(at stage) func(*state) {
	return func(s *state) {
		live := s.live()
		p := &process{launchState: launchState{spec: specOf("b"), hot: true}}
		p.State, p.SpecDigest, p.Mode, p.ID = StateStarting, "b", FirstStart, "first"
		a := &attempt{spec: p.spec, stage: at, process: p, mode: FirstStart,
			liveBy: noon.Add(20 * time.Second), calls: []call{{id: 1}}, parent: live, started: at != preparing}
		if live != nil {
			p.Number, p.RestartEpoch, p.Mode, p.ID = live.Number+1, live.RestartEpoch+1, HotRestart, "next"
			a.mode = HotRestart
		}
		p.BootstrapPath = fmt.Sprintf("envoy-rev%d.json", p.Number)
		if at == polling || at == killing {
			p.PID, p.Started = 100+p.Number, noon
		}
		if at == killing {
			a.failure, a.killBy = errors.New("not live"), noon.Add(killTimeout)
			p.ending, p.killed = "not live", noon
		}
		if a.started {
			s.processes = append(s.processes, p)
		}
		s.attempt = a
	}
}

// failed records in a state that the attempt has failed and that its process has exited.
func failed(cause error, lines ...string) func(*state) {
	return func(s *state) {
		a := s.attempt
		a.failure, a.process.State = cause, StateExited
		a.process.exit, a.process.lastLines = &keeper.Exit{Code: 1}, lines
		s.processes = s.processes[:len(s.processes)-1]
	}
}

func waits(s *state) { s.pending = &pending{spec: specOf("c"), calls: []call{{id: 2}}} }

func noKeeper(s *state) { s.link, s.lostAt = disconnected, noon }

func stops(s *state) { s.stop = &stop{} }

func drains(s *state) {
	s.drain.wanted, s.live().DrainRequested, s.live().ListenersCloseAt = true, true, noon.Add(time.Second)
}

// shown returns the epochs of a state as text, newest first, in the format of the parameter of
// host.
func shown(s state) string {
	var all []string
	for i := range s.processes {
		p := s.processes[len(s.processes)-1-i]
		all = append(all, fmt.Sprintf("%d %s", p.Number, p.State))
	}
	return strings.Join(all, ", ")
}

// done returns the names of the actions, without log lines, events and progress messages.
func done(actions []action) string {
	var all []string
	for _, a := range actions {
		switch a := a.(type) {
		case logLine, publish, announceWait:
		case sendSignal:
			all = append(all, fmt.Sprintf("%s %d", unix.SignalName(a.signal), a.number))
		case raise:
			all = append(all, "raise "+a.code)
		case clearCondition:
			all = append(all, "clear "+a.code)
		case cancelJob:
			all = append(all, "cancel "+a.name)
		default:
			all = append(all, strings.TrimPrefix(fmt.Sprintf("%T", a), "epoch."))
		}
	}
	return strings.Join(all, ", ")
}

func exitOf(id string, signal syscall.Signal) processExited {
	return processExited{id: id, exit: &keeper.Exit{Code: -1, Signal: unix.SignalName(signal)},
		cause: "ended"}
}

// TestNext tests the state diagrams of the package comment as a table.
func TestNext(t *testing.T) {
	wants := func(hash string, ifChanged bool) requested {
		return requested{call{id: 9, ifChanged: ifChanged}, specOf(hash), "test", nil}
	}
	gone := errors.New("connection refused")
	for _, row := range []struct {
		when    string
		from    state
		event   trigger
		status  status
		epochs  string
		actions string
	}{
		// Requests.
		{"a first request", host(""), wants("a", false), attempting, "", "prepare"},
		{"a request", host("0 live"), wants("b", false), attempting, "0 handing over", "prepare"},
		{"a request for what is live", host("0 live"), wants("a", true), idle, "0 live", "reply"},
		{"a request during a start", host("0 live", starts(preparing)), wants("c", false), attempting,
			"0 handing over", ""},
		{"a request in an overlap", host("0 draining, 1 live"), wants("b", false), waiting,
			"1 live, 0 draining", "countConnections"},
		{"a request without keeper", host("0 live", noKeeper), wants("b", false), keeperLost, "0 live",
			"awaitProcesses"},
		{"a request during a stop", host("0 live", stops), wants("b", false), stopping, "0 stopping",
			"reply"},
		{"the older epoch is idle", host("0 draining, 1 live", waits), counted{id: "0", idle: true},
			attempting, "1 handing over, 0 draining", "prepare"},
		{"the older epoch is busy", host("0 draining, 1 live", waits),
			counted{id: "0", left: 3, busy: true}, waiting, "1 live, 0 draining", "countConnections"},
		{"the older epoch exits", host("0 draining, 1 live", waits), exitOf("0", 0), attempting,
			"1 handing over", "cancel drain 0, removeFile, forget, prepare"},

		// An attempt: preparing, launching, polling, live.
		{"the bootstrap is written", host("0 live", starts(preparing)), prepared{id: "next"}, attempting,
			"1 starting, 0 handing over", "launch"},
		{"the bootstrap is refused", host("0 live", starts(preparing)), prepared{id: "next", err: gone},
			idle, "0 live", "removeFile, reply"},
		{"an event of an earlier start", host("0 live", starts(preparing)), prepared{id: "last"},
			attempting, "0 handing over", ""},
		{"the process runs", host("0 live", starts(launching)), launched{id: "next", pid: 7}, attempting,
			"1 starting, 0 handing over", "awaitLive"},
		{"there is no process", host("0 live", starts(launching)), launched{id: "next", err: gone},
			idle, "0 handing over", "SIGKILL 1, removeFile, clearInitializing, reply, probe"},
		{"it is live", host("0 live", starts(polling)), polled{id: "next"}, idle, "1 live, 0 draining",
			"storeNote, storeNote, clear envoy-down, clear admin-lost, clear envoy-silent, reply"},
		{"it is not live in time", host("0 live", starts(polling)), polled{"next", gone}, attempting,
			"1 starting, 0 handing over", "SIGKILL 1"},
		{"it exits before it is live", host("0 live", starts(polling)), exitOf("next", unix.SIGSEGV),
			attempting, "0 handing over",
			"cancel drain next, removeFile, cancel start next, forget"},
		{"it is aborted", host("0 live", starts(polling)), abortRequested{number: 1}, attempting,
			"1 starting, 0 handing over", "cancel start next, reply"},

		// A failed attempt: refusal, retry, side by side, repair.
		{"it was killed", host("0 live", starts(killing)), exitOf("next", unix.SIGKILL), idle,
			"0 handing over",
			"cancel drain next, removeFile, clearInitializing, reply, probe, forget"},
		{"its flag was set", host("0 live", starts(polling), failed(errExited, handshakeTroubles[0])),
			polled{"next", gone}, attempting, "0 handing over", "clearInitializing, prepare"},
		{"its parent is silent", host("0 live", starts(preparing)), prepared{id: "next", err: errSilent},
			attempting, "0 handing over", "prepare"},
		{"it cost nothing", host("0 handing over", func(s *state) { s.probe.examining = true }),
			probed{id: "0", examine: true}, idle, "0 live", ""},
		{"it cost the admin interface", host("0 handing over"), probed{"0", true, gone}, attempting,
			"0 handing over", "storeNote, raise admin-lost, prepare"},
		{"its parent dies", host("0 live", starts(polling)), exitOf("0", unix.SIGKILL), attempting,
			"1 starting", "cancel drain 0, raise envoy-down"},
		{"it outlives its parent too long", host("1 live", starts(polling), func(s *state) {
			s.processes = s.processes[1:]
			s.attempt.parentGone, s.attempt.orphanBy = true, noon
		}), tick{}, attempting, "2 starting", "cancel start next"},

		// Exits, back-off.
		{"the live epoch exits", host("0 live"), exitOf("0", unix.SIGSEGV), backingOff, "",
			"cancel drain 0, raise envoy-down, checkObstacle"},
		{"nothing is in the way", host("", func(s *state) {
			s.lastGood, s.backOff = specOf("a"), backOff{at: noon, checkBy: noon.Add(provenFirst)}
		}), obstacleChecked{}, attempting, "", "prepare"},
		{"a port is taken", host("", func(s *state) {
			s.lastGood, s.backOff = specOf("a"), backOff{at: noon, checkBy: noon.Add(provenFirst)}
		}), obstacleChecked{gone}, backingOff, "", "raise envoy-down"},
		{"it exits again", host("0 live", func(s *state) {
			s.backOff.exits, s.backOff.streak = []time.Time{noon.Add(-time.Second)}, 1
		}), exitOf("0", unix.SIGSEGV), backingOff, "", "cancel drain 0, raise envoy-down"},
		{"it exits too often", host("0 live", func(s *state) {
			s.config.RestartLimit, s.backOff.exits = 1, []time.Time{noon.Add(-time.Second)}
		}), exitOf("0", unix.SIGSEGV), finished, "",
			"cancel drain 0, raise gave-up, removeFile, cancel stop"},
		{"the newest exits in an overlap", host("0 draining, 1 live"), exitOf("1", unix.SIGSEGV),
			backingOff, "0 draining", "cancel drain 1, raise envoy-down, checkObstacle"},

		// The end of an older epoch.
		{"its child ended it", host("0 draining, 1 live"), exitOf("0", 0), idle, "1 live",
			"cancel drain 0, removeFile, forget"},
		{"it is overdue", host("0 draining, 1 live", func(s *state) {
			s.processes[0].LatestDrainEnd = noon.Add(-overdue)
		}), tick{}, idle, "1 live, 0 draining", "SIGKILL 0"},
		{"its drain side by side is over", host("0 draining, 1 live", func(s *state) {
			s.processes[0].endedBy = endedBySupervisor
		}), drainedOlder{id: "0"}, idle, "1 live, 0 draining", "SIGTERM 0"},

		// The admin interface of the live epoch.
		{"a probe is due", host("0 live", func(s *state) { s.probe.at = noon }), tick{}, idle, "0 live",
			"probe"},
		{"it hangs", host("0 live", func(s *state) { s.processes[0].misses = probeMisses - 1 }),
			probed{id: "0", err: syscall.EAGAIN}, idle, "0 live", "raise envoy-silent, SIGCONT 0"},
		{"it still hangs", host("0 live", func(s *state) {
			s.processes[0].misses, s.processes[0].AdminUnresponsive = probeMisses, true
		}), probed{id: "0", err: syscall.EAGAIN}, attempting, "0 handing over", "prepare"},

		// The keeper.
		{"it is lost", host("0 live"), keeperGone{}, keeperLost, "0 live",
			"raise keeper-lost, awaitProcesses"},
		{"it is lost during a start", host("0 live", starts(polling)), keeperGone{}, keeperLost,
			"1 starting, 0 live", "raise keeper-lost, cancel start next, awaitProcesses"},
		{"the loss of an earlier one", host("0 live"), keeperGone{adoption: -1}, idle, "0 live", ""},
		{"there is another one before its loss is known", host("0 live"), keeperConnected{call: 9},
			adopting, "0 live", "raise keeper-lost, listProcesses"},
		{"Envoy ended with it", host("0 live", noKeeper), processEnded{"0"}, keeperLost,
			"", "cancel drain 0, raise envoy-down, raise keeper-lost"},
		{"there is another one", host("0 live", noKeeper), keeperConnected{call: 9}, adopting, "0 live",
			"listProcesses"},
		{"it has the same epochs", host("0 live", func(s *state) { s.link = listing }),
			listed{found: []foundProcess{{processExited: processExited{id: "0"}}}}, idle, "0 live",
			"watchKeeper, clear keeper-lost, storeNote"},
		{"it has none", host("0 live", func(s *state) { s.link = listing }), listed{}, backingOff, "",
			"watchKeeper, clear keeper-lost, cancel drain 0, raise envoy-down, removeFile, checkObstacle"},

		// Drain and undrain.
		{"a drain", host("0 live"), drainRequested{call{id: 9}}, idle, "0 live", "requestDrain"},
		{"it is confirmed", host("0 live", func(s *state) { s.drain.request = "0" }),
			drainAnswered{id: "0"}, idle, "0 live", "storeNote"},
		{"it is refused", host("0 live", func(s *state) {
			s.drain.request, s.drain.calls = "0", []call{{id: 1}}
		}), drainAnswered{"0", gone}, idle, "0 live", "restoreHealth"},
		{"an undrain", host("0 live", drains), undrainRequested{call{id: 9}}, attempting,
			"0 handing over", "prepare"},

		// The stop.
		{"a stop", host("0 live"), stopRequested{}, stopping, "0 stopping", "storeNote, drainToStop"},
		{"nothing is in flight", host("0 live", stops), stopDrained{}, stopping, "0 stopping",
			"SIGTERM 0"},
		{"a stop in an overlap", host("0 draining, 1 live", stops), stopDrained{}, stopping,
			"1 stopping, 0 draining", "SIGTERM 1"},
		{"SIGTERM had no effect", host("0 live", stops, func(s *state) {
			s.stop.drained, s.stop.terminated = true, noon.Add(-terminateTimeout)
		}), tick{}, stopping, "0 stopping", "SIGKILL 0"},
		{"the last epoch exits", host("0 live", stops), exitOf("0", 0), stopping, "",
			"cancel drain 0, removeFile, forget, cleanUp"},
		{"all is cleaned up", host("", stops), cleanedUp{}, finished, "", "cancel stop"},
		{"a stop during a start", host("0 live", starts(preparing)), stopRequested{}, stopping,
			"0 stopping", "cancel start next, removeFile, reply, storeNote, drainToStop"},
	} {
		t.Run(row.when, func(t *testing.T) {
			before := row.from.clone()
			to, actions := next(row.from, event{at: noon, trigger: row.event})
			if to.status != row.status || shown(to) != row.epochs || done(actions) != row.actions {
				t.Errorf("%s, epochs %q, actions %q;\nwant %s, epochs %q, actions %q", to.status,
					shown(to), done(actions), row.status, row.epochs, row.actions)
			}
			if !reflect.DeepEqual(row.from, before) { //nolint:govet // the same errors
				t.Error("the state before has changed")
			}
			again, same := next(row.from, event{at: noon, trigger: row.event})
			if !reflect.DeepEqual(again, to) || !reflect.DeepEqual(same, actions) { //nolint:govet // the same errors
				t.Error("the same event has another outcome")
			}
		})
	}
}

// TestNext_SaysWhyNobodyServes checks the sentence of the condition "no Envoy serves" after an exit
// for an unknown reason, and while a process survives SIGKILL.
func TestNext_SaysWhyNobodyServes(t *testing.T) {
	for _, row := range []struct {
		from  state
		at    time.Time
		event trigger
		want  string
	}{
		{host("0 live"), noon, processExited{id: "0"}, "epoch 0 has ended, it is not known how; it"},
		{host("", starts(killing)), noon.Add(killTimeout), tick{},
			"epoch 0 is not live and does not end; it"},
	} {
		s, actions := next(row.from, event{row.at, row.event})
		said := ""
		for _, a := range actions {
			if raised, ok := a.(raise); ok && raised.code == conditionDown {
				said = raised.sentence
			}
		}
		if !strings.Contains(said, row.want) || strings.Contains(s.backOff.reason, "  ") ||
			strings.HasSuffix(s.backOff.reason, " ") {
			t.Errorf("%q, reason %q; want %q", said, s.backOff.reason, row.want)
		}
	}
}
