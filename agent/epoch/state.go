package epoch

import (
	"slices"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/keeper"
)

// status names the state of the supervisor. It is derived from the rest of the state by classify.
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

// state is everything the supervisor decides by. It is owned by the goroutine of Run and holds no
// lock, channel or connection. A Spec is shared and never changed.
type state struct {
	status    status
	link      link
	adoption  adoption
	lostAt    time.Time    // when the keeper was lost
	lostLong  bool         // longer than a keeper takes to replace itself
	awaiting  bool         // the end of a process of a lost keeper
	config    config.Envoy // see Options.Config
	idPrefix  string
	idCounter int

	processes []*process // those that live, oldest first
	history   []Epoch    // those that ended, oldest first
	last      *process   // copy of the epoch that was live last; nil: none since all were gone

	lastGood       *Spec // of the last epoch that was live and can be started again
	lastTried      *Spec // of the last attempt while there is no lastGood
	lastGoodFailed bool  // the last start of lastGood failed

	attempt    *attempt
	pending    *pending
	backOff    backOff
	unreplaced []unreplaced
	replaceAt  time.Time // time to replace a live epoch that may refuse connections; zero: none
	probe      probing
	drain      draining
	stop       *stop

	awaits  string // reason for the wait of the pending request
	outcome error  // of Run, once finished
	wake    time.Time
}

// process is an epoch with the state that is private to the supervisor.
type process struct {
	Epoch
	launchState
	exitState
	overlapState
	adminState
}

// launchState is the spec and command with which a process was launched. RenewSpec and
// RecordAdjusted replace spec and command.
type launchState struct {
	spec    *Spec // of an adopted one at first only hash and durations
	root    int   // number of the first epoch of its lineage
	hot     bool  // runs with hot restart
	command Command
	sum     string // checksum of its bootstrap (sumOf)
}

// exitState is how a process ends.
type exitState struct {
	endedBy   ender        // of a draining one
	ending    string       // why the supervisor ended it; "": it did not
	killed    time.Time    // SIGKILL was sent; zero: not
	stopBegun bool         // a stop has begun to drain it: its listeners may close
	exit      *keeper.Exit // nil: it lives
	lastLines []string     // of its log, once it has exited
}

// overlapState is that of an epoch that another one has replaced.
type overlapState struct {
	drainJob bool      // drains side by side
	closes   time.Time // expected close of its listeners while it drains side by side
	counting bool      // a job counts the connections
	left     int       // connections at the last count; -1: not known
	busy     bool      // a client was connected at the last count, or that is not known
	idle     bool      // no client is connected
	logged   bool      // the log says that a request waits for it
}

// adminState is that of the admin interface of an epoch that serves.
type adminState struct {
	misses   int       // unanswered probes in a row
	repaired time.Time // last attempt to replace the epoch because of its admin interface
}

// ender names who ends a draining epoch.
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

// live returns the epoch that serves, or nil.
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

// parentOf returns the living epoch that child took over from by hot restart, or nil.
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

// clone returns a copy that shares nothing that changes.
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
