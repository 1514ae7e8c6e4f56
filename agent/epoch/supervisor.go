package epoch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Supervisor decides about the epochs of one Envoy. Its state, but for what the lock guards, is owned by the goroutine of
// Run; see the package's documentation.
type Supervisor struct {
	options Options
	log     *slog.Logger
	inbox   chan func()   // what happened, run by the owner
	asking  chan struct{} // there is something in asked; holds one
	ended   chan struct{} // closed when Run returns
	prefix  string        // of process IDs: differs between agents
	hints   chan struct{} // see Hint; holds one
	telling chan struct{} // holds one while the live epoch is told to drain
	helpers sync.WaitGroup

	// The owner's.
	running    context.Context // ends with Run
	keeper     Keeper          // nil = the connection is lost
	lostAt     time.Time       // when it was
	processes  []*process      // those that live, oldest first
	history    []Epoch         // those that ended, oldest first
	counter    int             // of process IDs
	last       *process        // the epoch that was live last, dead or not; nil = none since all epochs were gone
	good       *Spec           // of the last epoch that got live and that this agent can start again
	wanted     *Spec           // of the last attempt, if there was no good one yet
	attempt    *attempt        // the one that runs
	pending    *pending        // the request that waits
	guard      guard
	doubt      time.Time // not zero: from then on, the live epoch may have closed its listeners for a child that died: replace it; see conclude
	probing    bool
	examining  bool // see examine
	probeAt    time.Time
	drained    bool      // a Drain stands, until an Undrain succeeds
	undraining []*caller // of Undrain: they wait for the next epoch that becomes live
	stop       *stop
	awaits     string // what the requests that wait wait for
	replies    []func()
	finished   bool // Run is to return outcome
	outcome    error
	wake       time.Time // when decide wants to run again; zero = only when something happens

	mu       sync.Mutex
	asked    []*caller // requests that the owner has not taken yet, in order
	snapshot []Epoch
	liveView *view
	changed  chan struct{}
}

type view struct {
	epoch Epoch
	admin Admin
}

// Run adopts what the keeper has, then supervises until ctx ends (Envoy goes on serving, for the next agent to adopt;
// returns nil), until Stop is done (nil), or until it gives up (ErrGaveUp). It is to be called once.
func (s *Supervisor) Run(ctx context.Context, keeper Keeper) error {
	s.keeper = keeper
	running, cancel := context.WithCancel(ctx)
	s.running = running
	defer func() {
		cancel()
		close(s.ended)
		s.helpers.Wait()
	}()
	if err := s.adopt(); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.decide()
		s.publish()
		for _, reply := range s.replies {
			reply()
		}
		s.replies = nil
		if s.finished {
			return s.outcome
		}
		var tick <-chan time.Time
		if !s.wake.IsZero() {
			timer.Reset(max(time.Until(s.wake), 0))
			tick = timer.C
		}
		var exits <-chan Process
		var lost <-chan struct{}
		if s.keeper != nil {
			exits, lost = s.keeper.Exits(), s.keeper.Done()
		}
		select {
		case happened := <-s.inbox:
			happened()
		case <-s.asking:
			s.takeRequests()
		case process, open := <-exits:
			if !open {
				s.keeperLost()
				continue
			}
			s.exited(process)
		case <-lost:
			s.keeperLost()
		case <-tick:
		case <-ctx.Done():
			return nil
		}
	}
}

// decide starts what can be started now and sets when to look again.
func (s *Supervisor) decide() {
	s.wake = time.Time{}
	if s.stop != nil {
		s.decideStop()
		return
	}
	if s.keeper == nil {
		s.missKeeper()
		s.tellWaiting() // nothing else can be done, and nothing can be known
		return
	}
	s.endOverdue()
	s.answerUnchanged()
	if s.attempt == nil {
		s.decideNext()
	}
	s.tellWaiting()
	s.decideProbe()
}

// at makes decide run again at the given time.
func (s *Supervisor) at(when time.Time) {
	if s.wake.IsZero() || when.Before(s.wake) {
		s.wake = when
	}
}

// post hands the owner something that happened; it is lost if Run has ended.
func (s *Supervisor) post(happened func()) {
	select {
	case s.inbox <- happened:
	case <-s.ended:
	}
}

// call runs a function in the owner's goroutine and waits for it.
func (s *Supervisor) call(ctx context.Context, function func()) error {
	done := make(chan struct{})
	select {
	case s.inbox <- func() { function(); close(done) }:
	case <-s.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	<-done
	return nil
}

// Beat returns once the loop of Run has turned.
func (s *Supervisor) Beat(ctx context.Context) error { return s.call(ctx, func() {}) }

// Recovers tells whether an epoch serves, or is being started, or what is known to work will be: by the guard, which may be waiting.
func (s *Supervisor) Recovers(ctx context.Context) (recovers bool) {
	_ = s.call(ctx, func() {
		recovers = s.live() != nil || s.attempt != nil || s.good != nil && !s.guard.at.IsZero()
	})
	return recovers
}

// Hint says that an epoch which is starting may be live from now on. To ask it all the time would keep its main thread, which has better
// to do, and there may be nothing to hint at.
func (s *Supervisor) Hint() {
	select {
	case s.hints <- struct{}{}:
	default: // it is looked at already
	}
}

// help runs a helper goroutine that ends with Run.
func (s *Supervisor) help(helper func(ctx context.Context)) {
	ctx := s.running
	s.helpers.Go(func() { helper(ctx) })
}

// ask puts one question to the keeper, within askTimeout.
func (s *Supervisor) ask(question func(context.Context, Keeper) error) error {
	if s.keeper == nil {
		return errKeeperLost
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.running), askTimeout)
	defer cancel()
	return question(ctx, s.keeper)
}

var errKeeperLost = errors.New("the connection to the keeper is lost")
