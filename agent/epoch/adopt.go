package epoch

import (
	"fmt"
	"slices"
	"syscall"

	"outrider.org/outrider/agent/condition"
)

// adoption is a pending request for the keeper's list of processes.
type adoption struct {
	// number of the keeper connection; lists that an earlier connection returns are ignored
	number int
	call   int // number of the setKeeper call that waits for the adoption; 0: Run waits for it
}

// keeperConnected is the event of a new keeper connection, which Run or setKeeper has passed.
type keeperConnected struct{ call int }

func (e keeperConnected) apply(m *machine) {
	if m.link == connected { // the loss of the previous connection has not been reported yet
		m.loseKeeper()
	}
	m.cancelAdoption()
	m.link = listing
	m.adoption = adoption{m.adoption.number + 1, e.call}
	m.do(listProcesses{m.adoption.number})
}

// cancelAdoption replies to the setKeeper call whose adoption is superseded.
func (m *machine) cancelAdoption() {
	if m.link == listing && m.adoption.call != 0 {
		m.reply([]call{{id: m.adoption.call}}, answer{err: errKeeperLost})
	}
}

// keeperGone is the event of a lost keeper connection.
type keeperGone struct{ adoption int }

func (e keeperGone) apply(m *machine) {
	if e.adoption == m.adoption.number {
		m.loseKeeper()
	}
}

// loseKeeper records that no keeper is connected. The Envoys are children of the keeper, and exit
// if it exits; they continue if the keeper only re-executes itself.
func (m *machine) loseKeeper() {
	m.cancelAdoption()
	m.link, m.lostAt, m.lostLong = disconnected, m.now, false
	m.adoption.call = 0
	m.raise(conditionKeeper, condition.Info,
		"The keeper is being replaced, or has ended: its successor is awaited.")
	if a := m.attempt; a != nil { // the next keeper reports whether the attempt's process lives
		m.do(cancelJob{startJob(a.process.ID)})
		m.requeue(a)
	}
}

// reconcileLost watches the processes of a keeper whose connection was lost. It raises an error
// condition if the connection is missing for longer than a re-execution of the keeper lasts.
func (m *machine) reconcileLost() {
	if len(m.processes) > 0 && !m.awaiting {
		m.awaiting = true
		await := awaitProcesses{}
		for _, p := range m.processes {
			if p.PID != 0 {
				await.ids, await.pids = append(await.ids, p.ID), append(await.pids, p.PID)
			}
		}
		m.do(await)
	}
	if m.due(m.lostAt.Add(keeperPatience)) && !m.lostLong {
		m.lostLong = true
		m.raise(conditionKeeper, condition.Error, "The connection to the keeper is lost: Envoy "+
			"can be neither started nor ended until there is one again.")
	}
}

// processEnded is the event of a process that exited while no keeper was connected.
type processEnded struct{ id string }

func (e processEnded) apply(m *machine) {
	m.awaiting = false
	if m.link == connected {
		return
	}
	if m.vanish(func(p *process) bool { return p.ID == e.id }) {
		m.raise(conditionKeeper, condition.Error, "The keeper has ended, and Envoy with it: Envoy "+
			"is started again once there is another keeper.")
	}
}

// listed is the event of the keeper's list of processes, or of the failure to get it.
type listed struct {
	adoption int
	found    []foundProcess
	err      error
}

// foundProcess is a process in the keeper's list.
type foundProcess struct {
	processExited          // exit is nil if the process is alive
	adopted       *process // the process according to its note in the keeper; nil: no valid note
	problem       error    // why the note in the keeper is not valid
}

func (e listed) apply(m *machine) {
	if m.link != listing || e.adoption != m.adoption.number {
		return
	}
	caller := m.adoption.call
	if e.err != nil {
		err := fmt.Errorf("list the processes of the keeper: %w", e.err)
		m.link, m.lostAt = disconnected, m.now
		if caller == 0 {
			m.finish(err)
		} else {
			m.reply([]call{{id: caller}}, answer{err: err})
		}
		return
	}
	m.link = connected
	if m.awaiting {
		m.awaiting = false
		m.do(cancelJob{awaitJob})
	}
	m.do(watchKeeper{e.adoption})
	m.clear(conditionKeeper)
	m.adopt(e.found)
	if caller != 0 {
		m.reply([]call{{id: caller}}, answer{})
	}
}

// adopt takes over processes of the keeper: all of them when Run starts, and those that the
// supervisor does not know yet when another keeper was connected.
func (m *machine) adopt(found []foundProcess) {
	has := func(id string) bool {
		return slices.ContainsFunc(found, func(f foundProcess) bool { return f.id == id })
	}
	m.vanish(func(p *process) bool { return !has(p.ID) })
	m.dropUnreplaced(has)
	var dead []processExited
	for _, f := range found {
		known := m.find(f.id)
		switch {
		case known != nil:
			m.startedAs(known, f.pid)
			if f.exit == nil {
				// the latest note may have been lost with the previous keeper
				m.annotate(known)
			}
		case m.isUnreplaced(f.id):
			continue
		case f.adopted == nil:
			m.disown(f)
			continue
		default:
			p := *f.adopted
			m.processes = append(m.processes, &p)
			m.info("adopted", "epoch", p.Number, "pid", p.PID, "phase", p.State,
				"exited", f.exit != nil)
		}
		if f.exit != nil {
			dead = append(dead, f.processExited)
		}
	}
	slices.SortStableFunc(m.processes, func(x, y *process) int {
		return x.Started.Compare(y.Started)
	})
	m.assignRoles(dead)
}

// dropUnreplaced removes the bootstrap files of exited epochs without a live successor, if the
// keeper does not list them any more.
func (m *machine) dropUnreplaced(has func(id string) bool) {
	all := m.unreplaced
	m.unreplaced = slices.DeleteFunc(slices.Clone(all), func(u unreplaced) bool {
		return !has(u.id)
	})
	for _, u := range all {
		if !has(u.id) {
			m.removeBootstrap(u.bootstrap)
		}
	}
}

// assignRoles decides which adopted epoch is live, or was live until it exited. It ends all other
// epochs.
func (m *machine) assignRoles(dead []processExited) {
	var last *process
	for _, p := range m.processes {
		if p.State.Serves() && (last == nil || !p.LiveSince.Before(last.LiveSince)) &&
			(m.last == nil || !p.LiveSince.Before(m.last.LiveSince)) {
			last = p
		}
	}
	if last != nil {
		m.setLast(last)
		m.replaceOlder(last)
		if m.lastGood == nil && last.spec.Command != nil {
			m.lastGood = last.spec
		}
	}
	starting := []*process{}
	for _, p := range m.processes {
		switch {
		case p.State.Serves():
			m.resumeLive(p)
		case p.State == StateStarting:
			starting = append(starting, p)
		case p.State == StateDraining && p.endedBy == endedBySupervisor && !p.drainJob &&
			!p.LatestDrainEnd.IsZero():
			m.drainSideBySide(p, p.LatestDrainEnd.Add(-p.spec.ParentShutdownTime))
		}
	}
	for _, exited := range dead {
		if p := m.find(exited.id); p != nil && p.State == StateStarting {
			m.unseen(p)
		}
		m.exited(exited)
	}
	for _, p := range starting {
		if p.alive() && m.find(p.ID) != nil {
			m.resumeStart(p)
		}
	}
	if m.live() == nil && len(m.processes) > 0 && m.attempt == nil && m.backOff.at.IsZero() {
		m.backOff.at, m.backOff.reason = m.now, "no epoch that was found serves"
	}
}

// resumeLive continues the drain or stop of an adopted epoch that serves.
func (m *machine) resumeLive(p *process) {
	m.drain.wanted = p.DrainRequested
	if p.DrainRequested && p.ListenersCloseAt.IsZero() { // Envoy has not confirmed the drain
		m.drainAgain(p)
	}
	// Envoy cannot be made to accept connections again after a stop has begun, so another epoch
	// must replace it.
	if p.stopBegun && m.stop == nil {
		m.replaceAt = m.now
		m.backOff.reason = fmt.Sprintf("the agent before this one ended while it stopped epoch %d",
			p.Number)
	}
	if p.AdminLost {
		m.adminLost(p, reasonAdminLost)
	}
}

// unseen handles an epoch that exited while it was starting and no agent was connected. The epoch
// may have become live and closed its parent's listeners, so another epoch must replace the parent.
func (m *machine) unseen(p *process) {
	if p.hot {
		m.do(clearInitializing{p.Lineage, p.Number})
	}
	m.replaceAt = m.now
	m.backOff.reason = fmt.Sprintf("epoch %d ended while it took over and no agent was there",
		p.Number)
}

// resumeStart continues to wait for an epoch to become live. An earlier agent started it, or this
// agent through a keeper connection that was lost.
func (m *machine) resumeStart(p *process) {
	if m.attempt != nil { // no agent starts two epochs at once
		m.kill(p, "another epoch is starting")
		m.lingers(p)
		return
	}
	a := &attempt{adopted: true, spec: p.spec, reason: p.Reason, process: p, mode: p.Mode,
		started: true, stage: polling, liveBy: p.Started.Add(p.spec.LiveTimeout)}
	a.parent = m.parentOf(p)
	if p.Mode == SideBySide {
		a.parent = m.live()
	}
	m.attempt = a
	if m.live() == nil && p.Mode != FirstStart {
		m.orphaned(a) // the parent exited while no agent was connected
	}
	m.poll(a)
}

// disown ends a process without a valid note, because it occupies ports and names that Envoy needs.
func (m *machine) disown(f foundProcess) {
	m.warn("ending a process of the keeper that is no epoch", "pid", f.pid, "error", f.problem)
	if f.exit == nil {
		m.do(sendSignal{f.id, -1, syscall.SIGKILL, "it is no epoch"})
	}
	m.do(forget{f.id})
}
