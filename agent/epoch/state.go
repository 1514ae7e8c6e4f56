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
	listing      link = "listing" // its list of processes has been requested
	connected    link = "connected"
)

// state is everything on which the supervisor bases its decisions. The goroutine of Run owns it. It
// contains no lock, channel or connection. A Spec is shared and never changed.
type state struct {
	status    status
	link      link
	adoption  adoption
	lostAt    time.Time    // when the keeper was lost
	lostLong  bool         // the keeper is away for longer than a re-execution takes
	awaiting  bool         // waiting for a process of a lost keeper to exit
	config    config.Envoy // see Options.Config
	idPrefix  string
	idCounter int

	processes []*process // those that live, oldest first
	history   []Epoch    // those that ended, oldest first
	// copy of the epoch that was live last; nil: none since the last time that all were gone
	last *process

	lastGood       *Spec // spec of the last epoch that was live and can be started again
	lastTried      *Spec // spec of the last attempt, while lastGood is nil
	lastGoodFailed bool  // the last start of lastGood failed

	attempt    *attempt
	pending    *pending
	backOff    backOff
	unreplaced []unreplaced
	replaceAt  time.Time // when to replace a live epoch that may refuse connections; zero: never
	probe      probing
	drain      draining
	stop       *stop

	awaits  string // reason why the pending request waits
	outcome error  // of Run, once finished
	wake    time.Time
}

// process is an epoch with its private state.
type process struct {
	Epoch
	launchState
	exitState
	overlapState
	adminState
}

// launchState is the spec and the command with which a process was started. RenewSpec and
// RecordAdjusted replace them.
type launchState struct {
	spec    *Spec // of an adopted one at first only hash and durations
	root    int   // number of the first epoch of its lineage
	hot     bool  // runs with hot restart
	command Command
	sum     string // checksum of its bootstrap (sumOf)
}

// exitState is the state of a process's exit.
type exitState struct {
	endedBy   ender        // of a draining one
	ending    string       // why the supervisor ended the process; "": the supervisor did not
	killed    time.Time    // SIGKILL was sent; zero: not
	stopBegun bool         // a stop has begun to drain it, so its listeners may close
	exit      *keeper.Exit // nil: it lives
	lastLines []string     // of its log, once it has exited
}

// overlapState is the state of an epoch that another one has replaced.
type overlapState struct {
	drainJob bool      // drains side by side
	closes   time.Time // expected closing of its listeners, if it drains side by side
	counting bool      // a job counts the connections
	left     int       // connections at the last count; -1: unknown
	busy     bool      // the last count found a client's connection, or failed
	idle     bool      // no client is connected
	logged   bool      // it was logged that a request waits for this epoch
}

// adminState is the state of a serving epoch's admin interface.
type adminState struct {
	misses   int       // unanswered probes in a row
	repaired time.Time // last attempt to replace the epoch because of its admin interface
}

// ender is the component that ends a draining epoch.
type ender string

const (
	endedByChild      ender = "hot"  // by its child, over Envoy's hot-restart protocol
	endedBySupervisor ender = "side" // the supervisor, by signals
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

// parentOf returns the living parent of child in a hot restart, or nil.
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

// classify returns the name of the state.
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

// clone returns a copy that shares only immutable values.
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
