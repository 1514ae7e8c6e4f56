package epoch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// adopt takes over what the keeper has: at the start of Run all of it, with a new keeper what differs from what was known.
func (s *Supervisor) adopt() error {
	var listed []Process
	err := s.ask(func(ctx context.Context, k Keeper) (err error) {
		listed, err = k.Processes(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("ask the keeper for the epochs it has: %w", err)
	}
	s.buryMissing(func(p *process) bool {
		return !slices.ContainsFunc(listed, func(one Process) bool { return one.ID == p.ID })
	})
	s.dropMourned(listed)
	var dead []Process
	for _, one := range listed {
		known := s.find(one.ID)
		if known == nil && s.guard.mourns(one.ID) {
			continue
		}
		if known == nil {
			var n note
			if err := json.Unmarshal(one.Note, &n); err != nil || n.BootstrapPath == "" {
				s.disown(one, err)
				continue
			}
			known = processOf(n, s.options.Admin)
			known.ID, known.PID = one.ID, one.PID
			if !one.Started.IsZero() {
				known.Started = one.Started
			}
			s.processes = append(s.processes, known)
			if known.sum != n.BootstrapSum && one.Exit == nil {
				s.annotate(known)
			}
			s.log.Info("adopted", "epoch", known.Number, "pid", known.PID, "phase", known.Phase, "exited", one.Exit != nil)
		}
		if one.Exit != nil {
			dead = append(dead, one)
		}
	}
	slices.SortStableFunc(s.processes, func(x, y *process) int { return x.Started.Compare(y.Started) })
	s.assignRoles(dead)
	return nil
}

// assignRoles puts what was adopted in its place: one epoch is live, or was until it died, the others end.
func (s *Supervisor) assignRoles(dead []Process) {
	for _, p := range s.processes {
		if p.Phase == Live && (s.last == nil || !p.Live.Before(s.last.Live)) {
			s.last = p
		}
	}
	if s.last != nil {
		s.replaceOlder(s.last)
		if s.good == nil && s.last.spec.Command != nil {
			s.good = s.last.spec
		}
	}
	starting := []*process{}
	for _, p := range s.processes {
		switch p.Phase {
		case Live:
			s.drained = p.Drained
			if p.Drained && p.DrainEnds.IsZero() { // it has not said that it drains
				s.drainAgain(p)
			}
			if p.stopping { // its stop was not finished, and there is no way back: a new one takes over
				s.doubt = time.Now()
				s.guard.reason = fmt.Sprintf("the agent before this one ended while it stopped epoch %d", p.Number)
			}
			if p.AdminLost {
				s.adminLost(p, "an epoch that failed took it over")
			}
		case Starting:
			starting = append(starting, p)
		case Draining:
			if p.child == "side" && p.stopDrain == nil && !p.Ends.IsZero() {
				s.watchDrain(p, p.Ends.Add(-p.spec.ParentShutdown))
			}
		}
	}
	for _, one := range dead {
		if p := s.find(one.ID); p != nil && p.Phase == Starting {
			s.unseen(p)
		}
		s.exited(one)
	}
	for _, p := range starting {
		if p.alive() {
			s.resume(p)
		}
	}
	if s.live() == nil && len(s.processes) > 0 && s.attempt == nil && s.guard.at.IsZero() {
		s.guard.at, s.guard.reason = time.Now(), "no epoch that was found serves"
	}
}

// unseen is about an epoch that died while it was starting and no agent was there: it may have been live before.
func (s *Supervisor) unseen(p *process) {
	if p.hot {
		err := s.ask(func(ctx context.Context, k Keeper) error { return k.ClearInitializing(ctx, p.Lineage) })
		if err != nil {
			s.log.Warn("the flag of a failed start could not be cleared", "epoch", p.Number, "error", err)
		}
	}
	s.doubt = time.Now()
	s.guard.reason = fmt.Sprintf("epoch %d ended while it took over and no agent was there", p.Number)
}

// resume waits for an epoch that another agent, or this one with another keeper, has started.
func (s *Supervisor) resume(p *process) {
	if s.attempt != nil { // two: never our doing
		s.signal(p, syscall.SIGKILL, "another epoch is starting")
		s.lingers(p)
		return
	}
	a := &attempt{adopted: true, spec: p.spec, reason: p.Reason, process: p, mode: p.Mode, started: true}
	a.parent = s.parentOf(p)
	if p.Mode == SideBySide {
		a.parent = s.live()
	}
	a.liveBy = p.Started.Add(p.spec.LiveTimeout)
	serving := s.live() != nil
	ctx, cancel := context.WithCancelCause(s.running)
	a.cancel = cancel
	s.attempt = a
	if !serving && p.Mode != First {
		s.orphaned(a) // what it was to take over from died meanwhile
	}
	s.helpers.Go(func() {
		defer cancel(nil)
		err := s.awaitLive(ctx, a, serving)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		s.post(func() { s.launched(a, err) })
	})
}

// disown ends a process that carries no note of ours: it holds ports and names that we need.
func (s *Supervisor) disown(one Process, err error) {
	s.log.Warn("the keeper has a process that is no epoch of ours: ending it", "pid", one.PID, "note", string(one.Note), "error", err)
	if one.Exit == nil {
		if err := s.ask(func(ctx context.Context, k Keeper) error { return k.Signal(ctx, one.ID, syscall.SIGKILL) }); err != nil {
			s.log.Warn("it could not be ended", "pid", one.PID, "error", err)
		}
	}
	s.forget(one.ID)
}

// keeperLost takes in that the keeper is gone, or was replaced; its Envoys end with it unless it re-executed itself.
func (s *Supervisor) keeperLost() {
	s.keeper, s.lostAt = nil, time.Now()
	s.options.Board.Raise(conditionKeeper, condition.Info, "The keeper is being replaced, or has ended: its successor is awaited.")
	if s.attempt != nil {
		s.attempt.cancel(errKeeperLost)
	}
}

// missKeeper looks which Envoys ended with the keeper, and raises an error if one of them served, or
// once the keeper has been away for longer than it takes to replace itself.
func (s *Supervisor) missKeeper() {
	if s.buryMissing(func(p *process) bool { return p.PID != 0 && !s.options.Exists(p.PID) }) {
		s.options.Board.Raise(conditionKeeper, condition.Error,
			"The keeper has ended, and Envoy with it: Envoy is started again once there is another keeper.")
	}
	if len(s.processes) > 0 {
		s.at(time.Now().Add(missedPause))
	}
	if until := s.lostAt.Add(keeperPatience); time.Now().Before(until) {
		s.at(until)
		return
	}
	s.options.Board.Raise(conditionKeeper, condition.Error,
		"The connection to the keeper is lost: Envoy can be neither started nor ended until there is one again.")
}

// SetKeeper hands in the keeper to go on with after the connection to the last one was lost (its Done was closed). Epochs
// that the new one does not know have ended; if one of them served, its successor is started at once.
func (s *Supervisor) SetKeeper(ctx context.Context, keeper Keeper) error {
	var err error
	called := s.call(ctx, func() {
		s.keeper = keeper
		if err = s.adopt(); err != nil {
			s.keeper, s.lostAt = nil, time.Now()
			return
		}
		s.options.Board.Clear(conditionKeeper)
	})
	if called != nil {
		return called
	}
	return err
}

// buryMissing takes in that epochs have ended with their keeper, and reports whether one of them
// served. That is none of Envoy's failures: it counts for neither back-off nor limit. A keeper that
// replaces itself may list them later as exited: then they are known already.
func (s *Supervisor) buryMissing(missing func(*process) bool) (served bool) {
	gone := slices.DeleteFunc(s.living(), func(p *process) bool { return !missing(p) })
	for _, p := range gone {
		s.guard.mourned = append(s.guard.mourned, mourned{p.ID, p.BootstrapPath})
	}
	before := s.guard
	before.exits = slices.Clone(before.exits)
	for _, p := range gone {
		wasLive := p.Phase == Live
		served = served || wasLive
		s.bury(p, &Exit{Code: -1, At: time.Now()}, "ended with its keeper")
		if wasLive && !s.finished {
			reason := s.guard.reason
			s.guard = before
			s.guard.at, s.guard.reason = time.Now(), reason
		}
	}
	return served
}
