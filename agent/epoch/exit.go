package epoch

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/keeper"
)

// unreplaced is an epoch that served and exited, and has no live successor yet. Its bootstrap file
// and its note remain: from them, the next agent learns that an epoch is missing and which spec
// worked last.
type unreplaced struct{ id, bootstrap string }

// remembered is the number of exited epochs that the supervisor retains for Epochs.
const remembered = 16

// processExited is the event of an exited process.
type processExited struct {
	id        string
	pid       int
	exit      *keeper.Exit // nil: unknown
	lastLines []string     // last lines of the process's log, oldest first
	cause     string       // reason of the exit, as text for people
}

func (e processExited) apply(m *machine) { m.exited(e) }

func (m *machine) exited(e processExited) {
	p := m.find(e.id)
	switch {
	case p == nil && m.isUnreplaced(e.id):
		return
	case p == nil:
		m.do(forget{e.id})
		return
	case p.PID == 0:
		m.startedAs(p, e.pid)
	}
	exit := e.exit
	if exit == nil {
		exit = &keeper.Exit{Code: -1, At: m.now}
	}
	served := p.State.Serves() && m.stop == nil
	if served {
		m.unreplaced = append(m.unreplaced, unreplaced{p.ID, p.BootstrapPath})
	}
	p.lastLines = e.lastLines
	m.recordExit(p, exit, cmp.Or(e.cause, "has ended, it is not known how"))
	if !served {
		m.do(forget{e.id})
	}
}

func (m *machine) isUnreplaced(id string) bool {
	return slices.ContainsFunc(m.unreplaced, func(u unreplaced) bool { return u.id == id })
}

// forgetUnreplaced makes the keeper remove its entries of exited epochs, once a successor is live.
func (m *machine) forgetUnreplaced() {
	for _, u := range m.unreplaced {
		m.do(forget{u.id})
	}
	m.removeUnreplaced()
}

// removeUnreplaced removes the bootstrap files of exited epochs that have no live successor.
func (m *machine) removeUnreplaced() {
	gone := m.unreplaced
	m.unreplaced = nil
	for _, u := range gone {
		m.removeBootstrap(u.bootstrap)
	}
}

// recordExit moves an exited process to the history and decides what follows from its exit.
func (m *machine) recordExit(p *process, exit *keeper.Exit, cause string) {
	phase := p.State
	p.State, p.exit, p.ExitCause, p.Exited = StateExited, exit, cause, m.now
	p.ExitStatus, p.ExitSignal = exit.Code, exit.Signal
	if !exit.At.IsZero() {
		p.Exited = exit.At
	}
	if p.ending != "" && !p.killed.IsZero() && exit.Signal != "" {
		p.ExitCause = "was killed by the agent: " + p.ending
	}
	reason := ""
	switch {
	case p.ending != "" && p.ExitCause == cause:
		reason = p.ending
	case phase == StateDraining && p.idle:
		reason = "no client was connected to it any more"
	case phase == StateDraining && p.endedBy == endedByChild &&
		m.now.Before(p.LatestDrainEnd.Add(-time.Second)):
		reason = fmt.Sprintf("%s before it was to; the epoch after it continues to serve",
			p.LatestDrainEnd.Sub(m.now).Round(time.Second))
	}
	m.publishExit(p, reason)
	m.do(cancelJob{drainJob(p.ID)})
	m.remove(p)
	m.history = append(m.history, p.Epoch)
	if len(m.history) > remembered {
		m.history = m.history[len(m.history)-remembered:]
	}

	a := m.attempt
	switch {
	case a == nil:
	case a.process == p && a.stage == killing:
		m.conclude(a)
	// the epoch may have become live before it exited; abort handles both cases
	case a.process == p:
		m.abort(errExited)
	case a.parent == p:
		m.orphaned(a)
	}
	if phase.Serves() && m.stop == nil {
		m.crashed(p)
	}
	if len(m.processes) == 0 {
		m.last = nil
	}
}

// publishExit publishes the exit of a process. The sentence has the cause and, unless it is "", the
// reason.
func (m *machine) publishExit(p *process, reason string) {
	n := notice{kind: condition.KindEpochExited, epoch: p.Number, message: "epoch exited",
		args: []any{"cause", p.ExitCause},
		fields: map[string]string{"cause": p.ExitCause, "status": strconv.Itoa(p.exit.Code),
			"signal": p.exit.Signal}}
	n.sentence = fmt.Sprintf("epoch %d %s", p.Number, p.ExitCause)
	if reason != "" {
		n.sentence += " (" + reason + ")"
		n.args = append(n.args, "reason", reason)
	}
	if p.ending == "" && (p.exit.Code != 0 || p.exit.Signal != "") {
		n.level = slog.LevelWarn
	}
	m.publish(n)
}

// vanish records the exit of the epochs for which gone returns true, which exited with their
// keeper. It reports whether one of them served.
func (m *machine) vanish(gone func(*process) bool) (served bool) {
	for _, p := range slices.Clone(m.processes) {
		if !gone(p) {
			continue
		}
		m.unreplaced = append(m.unreplaced, unreplaced{p.ID, p.BootstrapPath})
		served = served || p.State.Serves()
		m.recordExit(p, &keeper.Exit{Code: -1, At: m.now, KilledAtKeeperExit: true},
			"ended with its keeper")
	}
	return served
}

// kill sends SIGKILL to a process and logs why.
func (m *machine) kill(p *process, why string) {
	p.killed = m.now
	m.signal(p, syscall.SIGKILL, why)
}

// signal sends a process a signal to end it.
func (m *machine) signal(p *process, signal syscall.Signal, why string) {
	if p.ending == "" {
		p.ending = why
	}
	m.do(sendSignal{p.ID, p.Number, signal, why})
}
