package epoch

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/keeper"
)

// stage is the progress of an attempt.
type stage string

const (
	preparing stage = "preparing" // bootstrap, validation; no process yet
	clearing  stage = "clearing"  // the draining epochs to abort are ending; no process yet
	launching stage = "launching" // the keeper creates the process
	// the process runs; its admin interface is polled until the epoch is live
	polling stage = "polling"
	killing stage = "killing" // the attempt has failed, and its process is being ended
)

// attempt is one try to make a spec live. It consists of several processes in succession if a start
// is retried.
type attempt struct {
	spec    *Spec
	reason  string
	calls   []call
	abort   []int // draining epochs to kill once Envoy has accepted the configuration
	repair  bool  // started by the supervisor, without a request
	undrain bool  // started by a call of Undrain
	adopted bool  // started by an earlier agent; the spec comes from the note and has no functions

	stage   stage
	process *process
	parent  *process // process that passes its listening sockets to the new one; nil: none
	mode    Mode
	liveBy  time.Time
	killBy  time.Time // in stages killing and clearing: when the wait for exits ends

	tries      int   // number of tries in the current mode
	sideBySide bool  // the hot restart has failed, so the next start is side by side
	avoid      []int // lineages whose sockets are in use
	started    bool  // the process is in the supervisor's list of processes
	answered   bool  // the admin interface answers, so the handshake with the parent is complete
	parentGone bool  // the parent died before the child was live
	orphanBy   time.Time
	failure    error // why the attempt ends; nil: it continues
}

// Causes of a failed attempt. An *AttemptError wraps them.
var (
	errExited     = errors.New("Envoy exited before it was live")
	errExitedLive = errors.New("Envoy exited as soon as it was live")
	errSilent     = errors.New("the parent epoch does not answer, so a hot restart would hang")
	errHandshake  = errors.New("the hot restart hung in its handshake with the parent epoch")
	errOrphan     = errors.New("the parent epoch exited during the hot restart")
	errLingers    = errors.New("an aborted epoch does not exit on SIGKILL")
)

// begin plans and prepares the next process of an attempt.
func (m *machine) begin(a *attempt) {
	m.attempt = a
	m.plan(a)
	a.stage, a.started, a.answered, a.parentGone, a.failure = preparing, false, false, false, nil
	if a.liveBy.IsZero() || a.tries == 0 {
		a.liveBy = m.now.Add(a.spec.LiveTimeout)
	}
	if m.lastGood == nil {
		m.lastTried = a.spec
	}
	m.backOff.checked, m.backOff.checkBy = false, time.Time{}
	p := prepare{id: a.process.ID, spec: a.spec, launch: a.process.launch()}
	if a.mode == HotRestart && a.parent != nil {
		p.parent, p.parentAdmin = a.parent.ID, a.parent.AdminAddress
	}
	p.validate = m.live() != nil && a.spec.ValidateCommand != nil && a.tries == 0 && !a.repair &&
		(!a.sideBySide || len(a.abort) > 0)
	m.do(p)
}

// current returns the attempt if it is at the given stage and its process has the given ID;
// otherwise nil.
func (m *machine) current(id string, at stage) *attempt {
	if a := m.attempt; a != nil && a.process.ID == id && a.stage == at {
		return a
	}
	return nil
}

// prepared is the event of an attempt whose bootstrap file was written and, if required, validated,
// or whose preparation failed.
type prepared struct {
	id      string
	command Command
	sum     string
	err     error
}

func (e prepared) apply(m *machine) {
	a := m.current(e.id, preparing)
	switch {
	case a == nil:
		return
	case e.err != nil:
		m.fail(a, e.err)
		return
	}
	a.process.command, a.process.sum = e.command, e.sum
	if m.abortDraining(a.abort) {
		a.stage, a.killBy = clearing, m.now.Add(killTimeout)
		return
	}
	m.launch(a)
}

// launch has the keeper create the process of a prepared attempt.
func (m *machine) launch(a *attempt) {
	p := a.process
	a.stage, a.started, a.abort = launching, true, nil
	p.Started = m.now
	if a.tries == 0 { // live_timeout starts here, because it excludes the validation
		a.liveBy = m.now.Add(a.spec.LiveTimeout)
	}
	m.processes = append(m.processes, p)
	m.do(launch{keeper.StartSpec{ID: p.ID, EpochNumber: p.Number, RestartEpoch: p.RestartEpoch,
		Lineage: p.Lineage, HotRestart: p.hot, Path: p.command.Path, Args: p.command.Args,
		Env: p.command.Env, Note: noteOf(p),
		OutriderListeners: a.spec.OutriderListeners}, a.mode == HotRestart})
}

// launched is the event of a process that the keeper created or could not create.
type launched struct {
	id  string
	pid int
	err error
}

func (e launched) apply(m *machine) {
	if p := m.find(e.id); p != nil && e.err == nil {
		m.startedAs(p, e.pid)
	}
	a := m.current(e.id, launching)
	switch {
	case a == nil:
	case e.err != nil && a.failure == nil:
		m.fail(a, fmt.Errorf("start epoch %d: %w", a.process.Number, e.err))
	case a.failure != nil:
		m.fail(a, a.failure)
	default:
		a.stage = polling
		m.poll(a)
	}
}

func (m *machine) startedAs(p *process, pid int) {
	if p.PID != 0 {
		return // the process exited, and its exit was reported before its start
	}
	p.PID = pid
	m.publish(notice{kind: condition.KindEpochStarted, epoch: p.Number,
		sentence: fmt.Sprintf("epoch %d started (pid %d, %s): %s", p.Number, pid, p.Mode, p.Reason),
		message:  "epoch started", args: []any{"pid", pid, "mode", p.Mode, "reason", p.Reason}})
}

// poll polls the attempt's process until it is live.
func (m *machine) poll(a *attempt) {
	handshake := handshakeTimeout
	if m.live() == nil {
		handshake = handshakeTimeoutDown
	}
	m.do(awaitLive{id: a.process.ID, admin: a.process.AdminAddress, hot: a.mode == HotRestart,
		restartEpoch: a.process.RestartEpoch, liveBy: a.liveBy, liveTimeout: a.spec.LiveTimeout,
		handshake: min(handshake, a.spec.LiveTimeout)})
}

// answered is the event of the first answer on a starting epoch's admin interface.
type answered struct{ id string }

func (e answered) apply(m *machine) {
	if a := m.current(e.id, polling); a != nil {
		a.answered = true
	}
}

// polled is the event of a starting epoch that is live (err is nil) or that failed.
type polled struct {
	id  string
	err error
}

func (e polled) apply(m *machine) {
	switch a := m.current(e.id, polling); {
	case a == nil:
	case e.err == nil:
		m.commit(a)
	case a.failure != nil:
		m.fail(a, a.failure)
	default:
		m.fail(a, e.err)
	}
}

// abort makes the attempt fail with a cause.
func (m *machine) abort(cause error) {
	a := m.attempt
	switch {
	case a == nil || a.failure != nil:
	case a.stage == preparing || a.stage == clearing:
		m.do(cancelJob{startJob(a.process.ID)})
		m.fail(a, cause)
	default: // the epoch may be live already: the next event, polled, decides
		a.failure = cause
		m.do(cancelJob{startJob(a.process.ID)})
	}
}

// fail ends the attempt's process, if it runs, and calls conclude once it has exited.
func (m *machine) fail(a *attempt, cause error) {
	p := a.process
	a.failure = cause
	switch {
	case !a.started || !p.alive():
		m.conclude(a)
	// the process has not started, or it is unknown whether the keeper has started it
	case p.PID == 0:
		m.do(sendSignal{p.ID, p.Number, syscall.SIGKILL, cause.Error()})
		m.remove(p)
		m.conclude(a)
	default:
		a.stage, a.killBy = killing, m.now.Add(killTimeout)
		m.kill(p, cause.Error())
	}
}

// reconcileAttempt fails an attempt that exceeds its time.
func (m *machine) reconcileAttempt() {
	a := m.attempt
	switch {
	case a == nil:
	case a.stage == killing && m.due(a.killBy):
		m.lingers(a.process)
		m.conclude(a)
	case a.stage == clearing && len(m.older()) == 0:
		m.launch(a)
	case a.stage == clearing && m.due(a.killBy):
		m.fail(a, errLingers)
	case a.stage == polling && a.parentGone && a.failure == nil && m.due(a.orphanBy):
		m.abort(errOrphan)
	}
}

// orphaned fails an attempt whose parent exited, unless it becomes live within parentGrace. Until
// then no epoch serves, and without its parent a starting Envoy waits for ten seconds and then
// aborts.
func (m *machine) orphaned(a *attempt) {
	a.parentGone, a.orphanBy = true, m.now.Add(parentGrace)
	if !a.started {
		m.abort(errOrphan)
	}
}

// lingers marks a process that has not exited after SIGKILL. The machine then only waits for its
// exit.
func (m *machine) lingers(p *process) {
	p.State, p.endedBy, p.LatestDrainEnd = StateDraining, endedBySupervisor, m.now
}

// remove removes a process from the list of running processes.
func (m *machine) remove(p *process) {
	m.processes = slices.DeleteFunc(m.processes, func(o *process) bool { return o == p })
	m.removeBootstrap(p.BootstrapPath)
}

// removeBootstrap removes a bootstrap file, unless a running epoch uses it, or an exited epoch that
// has no live successor.
func (m *machine) removeBootstrap(path string) {
	needed := func(u unreplaced) bool { return u.bootstrap == path }
	used := func(p *process) bool { return p.BootstrapPath == path }
	if !slices.ContainsFunc(m.unreplaced, needed) && !slices.ContainsFunc(m.processes, used) {
		m.do(removeFile{path})
	}
}
