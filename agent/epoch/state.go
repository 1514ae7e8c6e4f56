package epoch

import (
	"slices"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/keeper"
)

// status names the state of the supervisor. classify derives it from the other fields of the state.
type status string

const (
	adopting   status = "adopting"    // the processes of the keeper are being listed
	idle       status = "idle"        // an epoch serves, or none was requested
	attempting status = "attempting"  // an epoch is being started
	waiting    status = "waiting"     // a request waits until an older epoch has ended or is idle
	backingOff status = "backing off" // no epoch serves, and the next start is due later
	keeperLost status = "keeper lost" // no keeper is connected
	stopping   status = "stopping"    // the epochs drain and are ended
	finished   status = "finished"    // Run returns state.outcome
)

// link names the state of the connection to the keeper.
type link string

const (
	disconnected link = "disconnected"
	listing      link = "listing" // the keeper's list of processes has been requested
	connected    link = "connected"
)

// state is everything on which the supervisor bases its decisions. Only the goroutine of Run
// accesses it. It contains no lock, channel or connection. Specs are shared with other goroutines
// and never changed.
type state struct {
	status    status
	link      link
	adoption  adoption
	lostAt    time.Time    // when the keeper connection was lost
	lostLong  bool         // the keeper connection is missing for longer than a re-execution takes
	awaiting  bool         // a job waits for a process of the lost keeper to exit
	config    config.Envoy // see Options.Config
	idPrefix  string
	idCounter int

	processes []*process // running processes, oldest first
	history   []Epoch    // exited epochs, oldest first
	// copy of the last epoch that became live; nil: none since the last time that no process was
	// running
	last *process

	lastGood       *Spec // spec of the last epoch that was live and can be started again
	lastTried      *Spec // spec of the last attempt; set only while lastGood is nil
	lastGoodFailed bool  // the last start of lastGood failed

	attempt    *attempt
	pending    *pending
	backOff    backOff
	unreplaced []unreplaced
	replaceAt  time.Time // when to replace a live epoch whose listeners may be closed; zero: never
	probe      probing
	drain      draining
	stop       *stop

	awaits  string // why the pending request waits
	outcome error  // result of Run, once the status is finished
	wake    time.Time
}

// process is an epoch with state that only this package uses.
type process struct {
	Epoch
	launchState
	exitState
	overlapState
	adminState
}

// launchState is the spec and the command line with which a process was started. updateSpec
// and recordAppliedLogLevels replace them.
type launchState struct {
	spec    *Spec // for an adopted epoch, before Apply: only the digest and the durations
	root    int   // number of the first epoch of the process's lineage
	hot     bool  // runs with hot restart enabled
	command Command
	sum     string // checksum of the bootstrap (sumOf)
}

// exitState has how and why a process ends.
type exitState struct {
	endedBy   ender        // who ends the process, if it drains
	ending    string       // why the supervisor ended the process; "": it did not
	killed    time.Time    // when SIGKILL was sent; zero: it was not
	stopBegun bool         // a stop has begun to drain the process, so its listeners may close
	exit      *keeper.Exit // nil: the process runs
	lastLines []string     // last lines of the process's log, once it has exited
}

// overlapState is the state of an epoch that another one has replaced.
type overlapState struct {
	drainJob bool // a job drains the epoch, because it was replaced side by side
	// when the epoch's listeners are expected to close, if it was replaced side by side
	closes   time.Time
	counting bool // a job counts the connections
	left     int  // number of client connections at the last count; -1: unknown
	busy     bool // the last count found a client's connection, or failed
	idle     bool // no client is connected
	logged   bool // it was logged that a request waits for the epoch
}

// adminState is the state of a serving epoch's admin interface.
type adminState struct {
	misses int // successive unanswered probes
	// when the last attempt to replace the epoch because of its admin interface started
	repaired time.Time
}

// ender says who ends a draining epoch.
type ender string

const (
	// the epoch's child ends the epoch, over Envoy's hot-restart protocol
	endedByChild      ender = "hot"
	endedBySupervisor ender = "side" // the supervisor ends the epoch, by signals
)

func (p *process) alive() bool { return p.State != StateExited }

func (p *process) launch() LaunchInput {
	return LaunchInput{Number: p.Number, RestartEpoch: p.RestartEpoch, Lineage: p.Lineage,
		HotRestart: p.hot, BootstrapPath: p.BootstrapPath}
}

// live returns the serving epoch, or nil.
func (s *state) live() *process {
	for _, p := range s.processes {
		if p.State.Serves() {
			return p
		}
	}
	return nil
}

// older returns the draining epochs, oldest first.
func (s *state) older() []*process {
	return slices.DeleteFunc(slices.Clone(s.processes), func(p *process) bool {
		return p.State != StateDraining
	})
}

func (s *state) find(id string) *process {
	for _, p := range s.processes {
		if p.ID == id {
			return p
		}
	}
	return nil
}

// parentOf returns the parent of child in a hot restart, if the parent still runs; otherwise nil.
func (s *state) parentOf(child *process) *process {
	for _, p := range s.processes {
		if p != child && p.Lineage == child.Lineage && p.root == child.root &&
			p.RestartEpoch == child.RestartEpoch-1 {
			return p
		}
	}
	return nil
}

// recovers reports whether an epoch serves, is being started or will be restarted.
func (s *state) recovers() bool {
	return s.live() != nil || s.attempt != nil || s.lastGood != nil && !s.backOff.at.IsZero()
}

// classify returns the status that follows from the other fields of the state.
func (s *state) classify() status {
	switch {
	case s.status == finished:
		return finished
	case s.stop != nil:
		return stopping
	case s.link == disconnected:
		return keeperLost
	case s.link == listing:
		return adopting
	case s.attempt != nil:
		return attempting
	case s.live() == nil && !s.backOff.at.IsZero():
		return backingOff
	case s.pending != nil || len(s.drain.undrains) > 0:
		return waiting
	}
	return idle
}

// clone returns a copy of the state. Original and copy share only values that never change.
func (s state) clone() state {
	copies := map[*process]*process{}
	copyOf := func(p *process) *process {
		if p == nil {
			return nil
		}
		if copies[p] == nil {
			c := *p
			copies[p] = &c
		}
		return copies[p]
	}
	s.processes = slices.Clone(s.processes)
	for i, p := range s.processes {
		s.processes[i] = copyOf(p)
	}
	if s.attempt != nil {
		a := *s.attempt
		a.process, a.parent = copyOf(a.process), copyOf(a.parent)
		a.calls, a.avoid = slices.Clone(a.calls), slices.Clone(a.avoid)
		s.attempt = &a
	}
	if s.pending != nil {
		p := *s.pending
		p.calls = slices.Clone(p.calls)
		s.pending = &p
	}
	if s.stop != nil {
		stop := *s.stop
		s.stop = &stop
	}
	s.history = slices.Clone(s.history)
	s.unreplaced = slices.Clone(s.unreplaced)
	s.backOff.exits = slices.Clone(s.backOff.exits)
	s.drain = s.drain.clone()
	return s
}
