package epoch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// StopOptions are the keys of the [envoy] table that a stop follows.
type StopOptions struct {
	TerminationDrain time.Duration // how long new connections are still taken
	ExitOnZero       bool          // instead of that: until no connection is left, but at least Minimum
	Minimum          time.Duration
	Maximum          time.Duration // of all draining, from the beginning
	Now              bool          // do not drain; also ends the drain of a stop under way
}

// The pace of a stop's drain.
const (
	quietFor     = time.Second            // without a request in flight: the drain is done
	countEvery   = 500 * time.Millisecond // connections of older epochs, asked of the keeper
	countsQuiet  = 2                      // in a row: a line of the kernel's table may be missed where the table changes while it is read
	adminRefusal = 10                     // questions in a row without an answer: the admin is gone
)

type stop struct {
	options    StopOptions
	drained    bool // nothing is left to wait for
	cancel     context.CancelFunc
	terminated time.Time // SIGTERM was sent
	killed     time.Time // SIGKILL was sent
}

// Stop drains and ends all epochs and what they leave behind, and returns when Run has returned. A second call waits for
// the first, or, with Now, ends its drain.
func (s *Supervisor) Stop(ctx context.Context, options StopOptions) error {
	err := s.call(ctx, func() {
		if s.stop == nil {
			s.beginStop(options)
		} else if options.Now {
			s.stop.options.Now = true
			s.stop.cancel()
		}
	})
	if err != nil && !errors.Is(err, ErrEnded) {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Supervisor) beginStop(options StopOptions) {
	ctx, cancel := context.WithTimeout(s.running, options.Maximum)
	s.stop = &stop{options: options, cancel: cancel}
	s.guard.at, s.doubt = time.Time{}, time.Time{}
	s.refusePending(ErrStopping)
	s.refuseUndrain(s.refusal(-1, ErrStopping))
	if s.attempt != nil {
		s.attempt.cancel(ErrStopping)
	}
	live := s.live()
	if live == nil {
		s.options.Board.Publish(condition.Event{Kind: condition.KindStopping, Sentence: "stopping; no epoch is live"})
		s.stop.drained = true
		return
	}
	live.stopping = true
	s.annotate(live)
	s.event(condition.KindStopping, live, fmt.Sprintf("stopping: epoch %d drains", live.Number), nil)
	ending := map[string]time.Time{}
	for _, p := range s.older() {
		ending[p.ID] = p.Ends
	}
	keeper, admin, id, number, until := s.keeper, live.admin, live.ID, live.Number, time.Now().Add(options.Maximum)
	s.helpers.Go(func() {
		defer cancel()
		switch err := s.drainToStop(ctx, keeper, id, admin, options); {
		case err == nil || ctx.Err() != nil:
		case hangs(err): // it answers nobody
			s.log.Warn("Envoy hangs: the stop does not wait for its connections", "epoch", number, "error", err)
		default:
			s.log.Warn("what Envoy has in flight is not known: the stop waits until no client is connected to it",
				"epoch", number, "until", until.Format(time.TimeOnly), "error", err)
			ending[id] = until
		}
		s.awaitConnections(ctx, ending)
		s.post(func() { s.stop.drained = true })
	})
}

// drainToStop returns when no request is in flight and no tunnel open, when ctx ends, or with an error when nothing can be
// known: no new connection is let in then either. An Envoy that hangs is woken first, and asked once more: it may have been stopped. It
// runs in a helper.
func (s *Supervisor) drainToStop(ctx context.Context, keeper Keeper, id string, admin Admin, options StopOptions) error {
	once := func(question func(context.Context) error) error {
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return question(asking)
	}
	ask := func(question func(context.Context) error) error {
		err := once(question)
		if !hangs(err) || ctx.Err() != nil || keeper == nil || s.wakeUp(ctx, keeper, id) != nil {
			return err
		}
		return once(question)
	}
	failing := ask(admin.FailHealthcheck)
	if failing != nil {
		s.log.Warn("the health check could not be failed", "error", failing)
	}
	if options.ExitOnZero && failing == nil {
		if !sleep(ctx, options.Minimum) {
			return nil
		}
		if err := s.awaitActivity(ctx, admin, 0, func(a Activity) bool { return a.Connections == 0 }); err != nil {
			s.log.Warn("whether Envoy has connections is not known: its listeners close", "error", err)
		}
	} else if !sleep(ctx, options.TerminationDrain) {
		return nil
	}
	// Not ?graceful: that closes the listeners at the end of Envoy's drain time only.
	if err := ask(func(ctx context.Context) error { return admin.DrainListeners(ctx, false) }); err != nil {
		return fmt.Errorf("drain the listeners: %w", err)
	}
	return s.awaitActivity(ctx, admin, quietFor, Activity.Idle)
}

// awaitActivity returns when done has been true for as long as asked, or ctx has ended.
func (s *Supervisor) awaitActivity(ctx context.Context, admin Admin, lasting time.Duration, done func(Activity) bool) error {
	var since time.Time
	for refused := 0; ctx.Err() == nil; {
		activity, err := s.activity(ctx, admin)
		now := time.Now()
		switch {
		case err != nil:
			if refused++; refused == adminRefusal {
				return fmt.Errorf("ask for requests in flight: %w", err)
			}
			since = time.Time{}
		case !done(activity):
			refused, since = 0, time.Time{}
		case since.IsZero():
			refused, since = 0, now
		}
		if !since.IsZero() && now.Sub(since) >= lasting {
			return nil
		}
		sleep(ctx, pollSlow)
	}
	return nil
}

// awaitConnections returns when no client is connected to epochs, given by id, or they should have gone. It is for those that nobody
// can ask what they are doing: their admin closed for the next one, whether that replaced them or failed.
func (s *Supervisor) awaitConnections(ctx context.Context, ending map[string]time.Time) {
	for quiet := 0; len(ending) > 0 && ctx.Err() == nil; sleep(ctx, countEvery) {
		waits := maps.Clone(ending)
		maps.DeleteFunc(waits, func(_ string, ends time.Time) bool { return !time.Now().Before(ends) })
		connected, err := s.connected(ctx)
		if err == nil { // else it is busy, or replaces itself: that says nothing of Envoy
			maps.DeleteFunc(waits, func(id string, _ time.Time) bool { return !connected[id] })
		}
		quiet++
		if len(waits) > 0 {
			quiet = 0
		}
		if quiet == countsQuiet {
			return
		}
	}
}

// connected asks the keeper which processes, by id, clients are connected to.
func (s *Supervisor) connected(ctx context.Context) (map[string]bool, error) {
	listed, err := s.measured(ctx)
	found := map[string]bool{}
	for id, one := range listed {
		found[id] = one.Exit == nil && one.Connections > 0
	}
	return found, err
}

// decideStop goes on with the stop: SIGTERM once all is drained, SIGKILL later, the end when nothing is left.
func (s *Supervisor) decideStop() {
	now, stop := time.Now(), s.stop
	switch {
	case s.keeper == nil && now.Before(s.lostAt.Add(keeperPatience)):
		s.at(s.lostAt.Add(keeperPatience)) // it may be replacing itself, and its Envoys live
	case s.keeper == nil:
		s.finish(fmt.Errorf("end Envoy: %w", errKeeperLost))
	case s.attempt != nil: // it is being killed, which takes at most killTimeout
	case len(s.processes) == 0:
		s.finish(s.ask(func(ctx context.Context, k Keeper) error { return k.Cleanup(ctx) }))
	case !stop.drained && !stop.options.Now && s.live() != nil:
		s.endOverdue()
	case stop.terminated.IsZero():
		stop.terminated = now
		s.terminate()
		s.at(now.Add(s.stopPatience()))
	case stop.killed.IsZero():
		if kill := stop.terminated.Add(s.stopPatience()); now.Before(kill) {
			s.at(kill)
			return
		}
		stop.killed = now
		s.killAll("it did not end on SIGTERM")
		s.at(now.Add(killTimeout))
	case now.Before(stop.killed.Add(killTimeout)):
		s.at(stop.killed.Add(killTimeout))
	default:
		s.finish(fmt.Errorf("%d epochs did not end on SIGKILL within %s", len(s.processes), killTimeout))
	}
}

func (s *Supervisor) stopPatience() time.Duration {
	if s.stop.options.Now {
		return abortTimeout
	}
	return terminateTimeout
}

// terminate sends SIGTERM to the newest epoch of each lineage: it takes its parent with it.
func (s *Supervisor) terminate() {
	newest := map[int]*process{}
	for _, p := range s.processes {
		if other := newest[p.Lineage]; other == nil || other.RestartEpoch < p.RestartEpoch {
			newest[p.Lineage] = p
		}
	}
	for _, p := range newest {
		s.signal(p, syscall.SIGTERM, "stopping")
	}
}

// finish makes Run return.
func (s *Supervisor) finish(err error) {
	s.stop.cancel()
	s.removeMourned()
	s.finished, s.outcome = true, err
}
