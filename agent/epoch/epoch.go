package epoch

import (
	"context"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Phase is where an epoch stands in its life.
type Phase string

// The phases. Draining is an epoch that was replaced and ends.
const (
	Starting Phase = "starting"
	Live     Phase = "live"
	Draining Phase = "draining"
	Exited   Phase = "exited"
)

// Epoch is one epoch as readers see it.
type Epoch struct {
	ID            string // of the process; numbers are used again, IDs never
	Number        int
	RestartEpoch  int
	Lineage       int
	Phase         Phase
	Mode          Mode
	PID           int
	Hash          string // of its Spec
	Namespace     string // of its Spec
	Reason        string // why it was started
	BootstrapPath string
	AdminAddress  string
	Started       time.Time
	Live          time.Time // zero = it never was
	Exited        time.Time // zero = it lives
	Ends          time.Time // draining: when it is ended at the latest; zero = not known
	AdminLost     bool      // it serves, but its admin interface is gone
	Silent        bool      // it lives, but its admin interface does not answer
	HandsOver     bool      // it serves, and another one is being started, or has failed and it is being asked what that cost
	MayRefuse     bool      // it may have closed its listeners for a child that died; it is being replaced
	Drained       bool      // it was told to drain by Drain
	DrainEnds     time.Time // when it closes its listeners for that; zero = it has not taken it yet
	Awaits        string    // what a request for the epoch after it waits for; "" = none waits
	Exit          *Exit
	Cause         string // why it ended, in words
}

// Age is how long it has lived, or did.
func (e Epoch) Age(now time.Time) time.Duration {
	if !e.Exited.IsZero() {
		now = e.Exited
	}
	return now.Sub(e.Started)
}

// process is an epoch as its owner sees it.
type process struct {
	Epoch
	spec    *Spec // of an adopted one only hash and durations
	admin   Admin
	root    int  // number of its lineage's first epoch
	hot     bool // runs with hot restart
	command Command
	sum     string // of its bootstrap: sumOf
	child   string // "hot": its child ends it; "side": the supervisor drains and ends it

	ended     chan struct{} // closed when it has exited
	killed    time.Time     // SIGKILL was sent
	asked     string        // why we ended it; "" = we did not
	stopDrain func()        // ends the helper that drains it side by side
	closes    time.Time     // of one that drains side by side: when its listeners close, as far as can be foreseen
	misses    int           // probes in a row that got no answer
	cured     time.Time     // when a cure was last tried
	counting  bool          // a helper counts its connections: a new epoch waits for it
	left      int           // its connections when they were counted last; -1 = not known
	busy      bool          // a client was connected when they were counted last, or that is not known
	idle      bool          // it was replaced, and no client is connected to it any more
	awaited   bool          // the log says that it is waited for
	stopping  bool          // a stop has begun to drain it: from then on it may have closed its listeners
}

func (p *process) alive() bool { return p.Phase != Exited }

func (p *process) launch() Launch {
	return Launch{Number: p.Number, RestartEpoch: p.RestartEpoch, Lineage: p.Lineage, HotRestart: p.hot,
		BootstrapPath: p.BootstrapPath}
}

// remembered is how many epochs that ended are kept for readers.
const remembered = 16

// living returns the processes that run, oldest first.
func (s *Supervisor) living() []*process {
	return slices.Clone(s.processes)
}

// live returns the epoch that serves; nil = none.
func (s *Supervisor) live() *process {
	for _, p := range s.processes {
		if p.Phase == Live {
			return p
		}
	}
	return nil
}

// older returns the epochs that are on their way out, oldest first.
func (s *Supervisor) older() []*process {
	var found []*process
	for _, p := range s.processes {
		if p.Phase == Draining {
			found = append(found, p)
		}
	}
	return found
}

func (s *Supervisor) find(id string) *process {
	for _, p := range s.processes {
		if p.ID == id {
			return p
		}
	}
	return nil
}

// signal sends a signal and remembers why; what the keeper cannot signal has ended.
func (s *Supervisor) signal(p *process, signal syscall.Signal, why string) {
	if p.asked == "" {
		p.asked = why
	}
	if signal == syscall.SIGKILL {
		p.killed = time.Now()
	}
	s.log.Info("signal to Envoy", "epoch", p.Number, "signal", unix.SignalName(signal), "why", why)
	err := s.ask(func(ctx context.Context, k Keeper) error { return k.Signal(ctx, p.ID, signal) })
	if err != nil {
		s.log.Warn("signal to Envoy failed", "epoch", p.Number, "signal", unix.SignalName(signal), "error", err)
	}
}
