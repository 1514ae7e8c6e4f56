package epoch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/lifecycle"
)

// Supervisor supervises the epochs of one Envoy; see the package comment. It is ready once it has
// adopted the processes of its first keeper.
type Supervisor struct {
	lifecycle.Readiness
	executor executor
	state    state // owned by the goroutine of Run

	mu       sync.Mutex
	snapshot []Epoch
	recovers bool
	changed  chan struct{}
}

// New returns a supervisor. It does nothing until Run is called.
func New(options Options) *Supervisor {
	s := &Supervisor{executor: newExecutor(options), changed: make(chan struct{})}
	s.state = state{status: adopting, link: disconnected, config: options.Config,
		idPrefix: fmt.Sprintf("%08x", rand.Uint32())}
	return s
}

// Name returns the name of this component of the agent.
func (s *Supervisor) Name() string { return "supervisor" }

// Run adopts the keeper's epochs, then supervises until ctx ends, Stop has completed, or Envoy has
// exited too often. In the last case it returns ErrRestartsExhausted, otherwise nil. When ctx ends,
// Envoy continues to serve, and the next agent adopts it. Run may be called once.
func (s *Supervisor) Run(ctx context.Context, keeper Keeper) error {
	x := &s.executor
	end := x.begin(ctx, keeper)
	defer end()
	s.step(event{trigger: keeperConnected{}})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for s.state.status != finished {
		var due <-chan time.Time
		if !s.state.wake.IsZero() {
			timer.Reset(max(time.Until(s.state.wake), 0))
			due = timer.C
		}
		select {
		case <-x.pings:
		case <-x.inbox.filled:
			for _, e := range x.inbox.take() {
				if s.state.status != finished {
					s.step(e)
				}
			}
		case <-due:
			s.step(event{trigger: tick{}})
		case <-ctx.Done():
			return nil
		}
	}
	return s.state.outcome
}

// step makes one transition of the state machine, publishes the new state to readers, and starts
// the actions that result from it.
func (s *Supervisor) step(e event) {
	e.at = time.Now()
	var actions []action
	s.state, actions = next(s.state, e)
	s.publish()
	if s.state.status != adopting {
		s.MarkReady()
	}
	for _, a := range actions {
		a.run(&s.executor)
	}
}

// publish makes a changed state visible to readers.
func (s *Supervisor) publish() {
	snapshot := slices.Clone(s.state.history)
	for _, p := range s.state.processes {
		snapshot = append(snapshot, p.Epoch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovers = s.state.recovers()
	if slices.Equal(snapshot, s.snapshot) {
		return
	}
	s.snapshot = snapshot
	close(s.changed)
	s.changed = make(chan struct{})
}

// Epochs returns the recently exited epochs, then the running ones, each group oldest first.
func (s *Supervisor) Epochs() []Epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.snapshot)
}

// Live returns the serving epoch and its admin interface; false if no epoch serves. The admin
// interface may not exist any more (Epoch.AdminLost).
func (s *Supervisor) Live() (Epoch, Admin, bool) {
	for _, e := range s.Epochs() {
		if e.State.Serves() {
			return e, s.executor.options.Admin(e.AdminAddress), true
		}
	}
	return Epoch{}, nil, false
}

// Changed returns a channel that is closed when the results of Epochs or Live change. To miss no
// change, call Changed before Epochs or Live.
func (s *Supervisor) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// ServesOrRecovers reports whether an epoch serves, is being started or will be restarted.
func (s *Supervisor) ServesOrRecovers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recovers
}

// Ping returns once the loop of Run has handled an event, or when ctx ends.
func (s *Supervisor) Ping(ctx context.Context) error {
	select {
	case s.executor.pings <- struct{}{}:
		return nil
	case <-s.executor.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Apply requests an epoch with the request's spec and returns once it is live. The error is a
// *AttemptError, errEnded or ctx's error. Requests that arrive while an attempt runs are merged
// into one with the newest spec, and all their callers receive its outcome. If ctx ends, Apply
// returns, but the request continues.
func (s *Supervisor) Apply(ctx context.Context, request Request) (Result, error) {
	return s.Submit(request)(ctx)
}

// Submit is Apply in two steps, for callers that must not block. Submit queues the request and
// returns at once; wait returns the outcome. Requests are handled in the order of the calls of
// Submit.
func (s *Supervisor) Submit(request Request) (wait func(context.Context) (Result, error)) {
	c := s.executor.call(request.OnWait, func(c call) trigger {
		c.ifChanged = request.IfChanged
		return requested{c, request.Spec, request.Reason, request.AbortEpochs}
	})
	return func(ctx context.Context) (Result, error) {
		a := s.executor.await(ctx, c)
		return a.result, a.err
	}
}

// Configure replaces Options.Config without blocking.
func (s *Supervisor) Configure(c config.Envoy) { s.executor.post(configured{c}) }

// Drain makes the live epoch fail its health checks, and close its listeners at the end of its
// drain time. Requests in flight complete. The drain also applies to later epochs until Undrain.
// The drain request is repeated until Envoy confirms it, if Envoy may have accepted it without
// answering, or is about to be replaced. If Drain returns an error, nothing has changed. A
// successful Drain ends an Undrain in progress. If ctx ends, the drain continues.
func (s *Supervisor) Drain(ctx context.Context) error {
	return s.call(ctx, func(c call) trigger { return drainRequested{c} }).err
}

// Undrain restores service after Drain and returns when an epoch that accepts connections is live.
// Envoy cannot revert a drain, so Undrain starts an epoch of the configuration in force, unless
// another epoch becomes live first. Until then the old epoch continues to drain; if it closes its
// listeners meanwhile, the new epoch binds its own.
//
// A failed Undrain changes nothing. If no drain was requested, the result's Mode is NoNewEpoch.
// onWait, if not nil, is called like Request.OnWait. If ctx ends, the undrain continues.
func (s *Supervisor) Undrain(ctx context.Context, onWait func(until time.Time, why string)) (
	Result, error) {
	c := s.executor.call(onWait, func(c call) trigger { return undrainRequested{c} })
	a := s.executor.await(ctx, c)
	return a.result, a.err
}

// Abort kills an epoch. If the epoch is starting, its request fails; if it serves, it is started
// again; if it was replaced, its remaining connections are cut, and the keeper acts as the parent
// in the hot-restart protocol with the child of the killed epoch.
func (s *Supervisor) Abort(ctx context.Context, number int) error {
	return s.call(ctx, func(c call) trigger { return abortRequested{c, number} }).err
}

// updateSpec passes the spec of a new configuration whose digest has not changed, so that
// no epoch is started for it. Later starts use the new spec, because it may differ in settings that
// need no new epoch (log levels in the command line, LiveTimeout). updateSpec reports
// whether the live epoch runs with another command line; in this case the caller adjusts the epoch
// and calls recordAppliedLogLevels.
func (s *Supervisor) updateSpec(ctx context.Context, spec *Spec) (differs bool, err error) {
	a := s.call(ctx, func(c call) trigger { return renewed{c, spec} })
	return a.differs, a.err
}

// recordAppliedLogLevels records that the log levels of a running epoch were set to those in the
// command line of a spec.
func (s *Supervisor) recordAppliedLogLevels(ctx context.Context, id string, spec *Spec) error {
	return s.call(ctx, func(c call) trigger { return tuned{c, id, spec} }).err
}

// setKeeper makes the Supervisor use a connection to the next keeper after the previous connection
// was lost (Done is closed), and returns when the keeper's processes are adopted. Epochs that this
// keeper does not list have exited; if one of them served, its successor starts at once.
func (s *Supervisor) setKeeper(ctx context.Context, keeper Keeper) error {
	s.executor.setKeeper(keeper)
	return s.call(ctx, func(c call) trigger { return keeperConnected{c.id} }).err
}

// Stop drains and ends all epochs, removes their sockets and files, and returns when Run has
// returned. c determines how long it drains (termination_drain_duration and others); if skipDrain
// is true, it does not drain. A second call waits for the first one to complete; if skipDrain is
// true, it ends the drain of the first one.
func (s *Supervisor) Stop(ctx context.Context, c config.Envoy, skipDrain bool) error {
	s.executor.post(stopRequested{c, skipDrain})
	select {
	case <-s.executor.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call posts an event and waits for its result.
func (s *Supervisor) call(ctx context.Context, trigger func(call) trigger) answer {
	return s.executor.await(ctx, s.executor.call(nil, trigger))
}
