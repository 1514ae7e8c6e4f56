package epoch

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/keeper"
)

// world models the Envoys of one host, with the behaviour measured with Envoy 1.40: shared memory,
// hot restart, signals and the admin interface. It reports wrong use of these interfaces as faults,
// and times without a serving Envoy as outages, because with real Envoys both lose requests.
type world struct {
	t  testing.TB
	mu sync.Mutex

	all       []*fakeEnvoy
	memory    map[int]*memory
	keeper    *fakeKeeper // keeper connection of the agent
	behaviour map[string]behaviour
	// if a parent exits before its child is live, the keeper sends the parent's part of the
	// handshake
	rescue    bool
	ending    bool // the keeper is stopping: its Envoys exit, and it starts no others
	unsteered bool // the keeper cannot steer connections
	// the keeper cannot clear the flag "initializing" in Envoy's shared memory
	unclear    bool
	allowed    bool          // killing an old epoch early is no fault, because the test calls Abort
	unmeasured bool          // the keeper cannot count connections
	hungKeeper chan struct{} // not nil: the keeper answers no request until this channel is closed
	clients    uint64        // idle connections that each Envoy has until it exits
	runs       int           // number of runs with --mode validate
	cleaned    int
	measured   int

	faults  []string
	down    time.Time // since when no Envoy has served; zero: one serves
	served  bool      // an Envoy has served
	outages []time.Duration
	pid     int
}

// behaviour is the special behaviour of Envoys with a certain spec.
type behaviour struct {
	invalid   bool          // --mode validate refuses the configuration
	unparsed  bool          // the Envoy exits before it contacts its parent
	late      bool          // the Envoy exits after it has taken over its parent's admin address
	never     bool          // the Envoy never becomes live
	slow      time.Duration // time until the Envoy is live
	crashWith string        // signal that ends the Envoy
	crashAt   time.Duration // time between becoming live and the signal
	sick      func(e *fakeEnvoy)
}

type memory struct{ initializing, stale bool }

type fakeEnvoy struct {
	keeper.StartSpec
	pid        int
	started    time.Time
	exit       *keeper.Exit
	lastLines  []string
	hash       string
	drain      time.Duration
	shutdown   time.Duration
	handshaken bool
	live       time.Time
	told       bool // the Envoy's child has requested it to exit
	listening  bool
	admin      bool
	// the Envoy is stopped; when it continues, a queued message makes it close its admin interface
	closing bool
	stopped bool
	stalls  bool // a request to drain the listeners stops the Envoy
	// requests that the Envoy received while stopped, and executes when it continues
	late        []func(e *fakeEnvoy)
	wedged      bool // the main thread hangs, and no signal makes it continue
	unhealthy   bool
	datagrams   bool          // the Envoy serves UDP, even after its child is live
	undrainable bool          // the admin interface refuses requests to drain the listeners
	slowAdmin   time.Duration // delay of admin requests that change the health check
	steered     bool          // the keeper steers new connections to another Envoy
	closes      time.Time     // when the Envoy will close its listeners
	parent      *fakeEnvoy    // process that the Envoy regards as its parent
	forgotten   bool
	levels      []string // log levels that were sent to the admin interface
	unlevelled  bool     // the admin interface refuses to change log levels
	note        json.RawMessage

	requests, tunnels, idle uint64
}

const (
	toHandshake = 15 * time.Millisecond
	toLive      = 50 * time.Millisecond
)

func newWorld(t testing.TB) *world {
	return &world{t: t, memory: map[int]*memory{}, behaviour: map[string]behaviour{}, rescue: true, pid: 100}
}

// later calls f after delay, with the world's mutex locked, if the process is still running and is
// not stopped.
func (w *world) later(e *fakeEnvoy, delay time.Duration, f func()) {
	time.AfterFunc(delay, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.exit == nil && !e.stopped {
			f()
			w.look()
		}
	})
}

func (w *world) fault(format string, arguments ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, arguments...))
}

// look updates the total duration of outages. It reports a fault if too many Envoys run.
func (w *world) look() {
	serving, alive := false, 0
	for _, e := range w.all {
		serving = serving || e.exit == nil && e.listening && !e.stopped
		if e.exit == nil && !e.live.IsZero() {
			alive++
		}
	}
	// the maximum is three: a parent, its child, and an Envoy that remained after a crash
	if alive > 3 {
		w.fault("%d Envoys at the same time", alive)
	}
	switch {
	case serving && !w.down.IsZero():
		w.outages = append(w.outages, time.Since(w.down))
		w.down = time.Time{}
	case !serving && w.served && w.down.IsZero():
		w.down = time.Now()
	}
	w.served = w.served || serving
}

func (w *world) find(lineage, restart int) *fakeEnvoy {
	for _, e := range w.all {
		if e.exit == nil && e.HotRestart && e.Lineage == lineage && e.RestartEpoch == restart {
			return e
		}
	}
	return nil
}

// start models the exec of an Envoy.
func (w *world) start(spec keeper.StartSpec) *fakeEnvoy {
	w.pid++
	e := &fakeEnvoy{StartSpec: spec, pid: w.pid, started: time.Now(), note: spec.Note,
		hash: spec.Args[0], idle: w.clients}
	e.drain, _ = time.ParseDuration(spec.Args[1])
	e.shutdown, _ = time.ParseDuration(spec.Args[2])
	for _, other := range w.all {
		if other.exit == nil && other.EpochNumber == e.EpochNumber {
			w.fault("epoch %d was started while one of this number lives", e.EpochNumber)
		}
	}
	w.all = append(w.all, e)
	b := w.behaviour[e.hash]
	if b.sick != nil {
		b.sick(e)
	}
	if e.HotRestart {
		if other := w.find(e.Lineage, e.RestartEpoch); other != e ||
			w.find(e.Lineage, e.RestartEpoch+3) != nil {
			w.later(e, 5*time.Millisecond,
				func() { w.end(e, 1, "", "unable to bind domain socket with base_id=1, id=0, errno=98") })
			return e
		}
		if e.RestartEpoch == 0 {
			w.memory[e.Lineage] = &memory{}
		}
		m := w.memory[e.Lineage]
		if m == nil {
			w.later(e, 5*time.Millisecond, func() { w.end(e, -1, "SIGABRT", "panic: cannot open shared memory region") })
			return e
		}
		if m.initializing {
			w.later(e, 5*time.Millisecond, func() { w.end(e, 1, "", "previous envoy process is still initializing") })
			return e
		}
		m.initializing = true
	}
	if b.unparsed {
		w.later(e, 40*time.Millisecond, func() { w.end(e, 1, "", "Unable to parse JSON as proto") })
		return e
	}
	if !e.HotRestart || e.RestartEpoch == 0 {
		w.initialize(e, b, nil)
		return e
	}
	w.later(e, toHandshake, func() { w.handshake(e, b) })
	return e
}

func (w *world) handshake(e *fakeEnvoy, b behaviour) {
	parent, m := w.find(e.Lineage, e.RestartEpoch-1), w.memory[e.Lineage]
	switch {
	case parent == nil:
		w.later(e, 10*time.Second, func() { w.end(e, -1, "SIGABRT", "hot restart sendmsg() failed: errno 111") })
	case parent.stopped:
		parent.closing = true // e waits for the stopped parent and never becomes live
	case m.stale:
		m.stale = false
		w.end(e, 1, "", "parent did not respond as expected")
	default:
		e.handshaken, parent.admin = true, false
		if old := parent.parent; old != nil && old.exit == nil {
			if old.process().ClientConnections > 0 || old.process().HasListeners {
				w.fault("epoch %d was started while epoch %d was ending: its connections are cut",
					e.EpochNumber, old.EpochNumber)
			}
			old.told = true
			if !old.stopped {
				w.end(old, 0, "")
			}
			parent.parent = nil
		}
		w.initialize(e, b, parent)
	}
}

func (w *world) initialize(e *fakeEnvoy, b behaviour, parent *fakeEnvoy) {
	w.later(e, 5*time.Millisecond, func() { e.admin = true })
	switch {
	case b.late:
		w.later(e, 30*time.Millisecond,
			func() { w.end(e, 1, "", "cannot bind '0.0.0.0:80': Address already in use") })
	case !b.never:
		w.later(e, toLive-toHandshake+b.slow, func() { w.liven(e, b, parent) })
	}
}

func (w *world) liven(e *fakeEnvoy, b behaviour, parent *fakeEnvoy) {
	if parent != nil && (parent.exit != nil || parent.stopped) {
		w.later(e, 10*time.Second, func() { w.end(e, -1, "SIGABRT", "hot restart sendmsg() failed: errno 111") })
		return
	}
	e.live, e.listening = time.Now(), true
	if e.HotRestart {
		w.memory[e.Lineage].initializing = false
	}
	if parent != nil {
		parent.listening = false
		e.parent = parent
		w.later(e, e.shutdown, func() {
			if parent.exit == nil && !parent.stopped {
				parent.told = true
				w.end(parent, 0, "")
			}
			e.parent = nil
		})
	}
	if b.crashAt > 0 {
		w.later(e, b.crashAt, func() { w.end(e, -1, b.crashWith) })
	}
	w.look()
}

// closeListeners models the end of a drain: the kernel resets the connections in the queues of the
// listeners.
func (w *world) closeListeners(e *fakeEnvoy) {
	if !e.listening { // e's child has taken over the listening sockets
		return
	}
	e.listening = false
	for _, other := range w.all {
		if other != e && other.listening && !w.unsteered && !(e.steered && !e.closes.After(time.Now())) {
			w.fault("epoch %d closed its listeners while connections came in, beside epoch %d",
				e.EpochNumber, other.EpochNumber)
		}
	}
}

// end models the exit of a process.
func (w *world) end(e *fakeEnvoy, code int, signal string, lines ...string) {
	if e.exit != nil {
		return
	}
	e.exit = &keeper.Exit{Code: code, Signal: signal, At: time.Now(), KilledAtKeeperExit: w.ending}
	e.lastLines = lines
	e.listening, e.admin = false, false
	if e.handshaken && e.live.IsZero() && signal != "" {
		w.memory[e.Lineage].stale = true
	}
	for _, child := range w.all {
		if child.exit != nil || child.parent != e || e.told {
			continue
		}
		child.parent = nil
		if !w.rescue {
			w.later(child, 10*time.Second,
				func() { w.end(child, -1, "SIGABRT", "hot restart sendmsg() failed: errno 111") })
		}
	}
	if w.keeper != nil {
		w.keeper.exits <- e.process()
	}
	w.look()
}

func (w *world) signal(e *fakeEnvoy, signal syscall.Signal) {
	for _, child := range w.all {
		early := child.exit == nil && child.parent == e && time.Since(child.live) < child.shutdown+time.Second
		if early && signal != syscall.SIGCONT && !w.allowed {
			w.fault("epoch %d was sent %s while epoch %d counts on it",
				e.EpochNumber, signal, child.EpochNumber)
		}
	}
	switch signal {
	case syscall.SIGKILL:
		w.end(e, -1, "SIGKILL")
	case syscall.SIGCONT:
		if e.stopped && !e.wedged {
			w.wake(e)
		}
	case syscall.SIGSTOP:
		e.stopped = true
		w.look()
	case syscall.SIGTERM:
		w.later(e, 10*time.Millisecond, func() {
			if e.parent != nil {
				e.parent.told = true
				w.end(e.parent, 0, "")
			}
			w.end(e, 0, "")
		})
	}
}

// wake continues a process that was stopped.
func (w *world) wake(e *fakeEnvoy) {
	e.stopped = false
	e.admin = e.admin && !e.closing
	for _, act := range e.late {
		act(e)
	}
	e.late = nil
	w.look()
}

// hang stops a process so that SIGCONT does not continue it.
func (w *world) hang(e *fakeEnvoy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.stopped, e.wedged = true, true
	w.look()
}

func (e *fakeEnvoy) process() keeper.Process {
	return keeper.Process{ID: e.ID, PID: e.pid, Started: e.started, Exit: e.exit, LastLines: e.lastLines,
		Note: slices.Clone(e.note), ClientConnections: e.requests + e.tunnels + e.idle, HasListeners: (e.listening || e.datagrams) && e.exit == nil}
}
