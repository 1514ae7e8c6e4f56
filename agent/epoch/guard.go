package epoch

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"outrider.org/outrider/agent/condition"
)

// The codes of this package's conditions.
const (
	conditionDown      = "envoy-down"
	conditionAdminLost = "admin-lost"
	conditionSilent    = "envoy-silent"
	conditionKeeper    = "keeper-lost"

	// ConditionGaveUp says that Envoy exited too often; the event gave-up says the same.
	ConditionGaveUp = "gave-up"
)

// guard brings back an Envoy that died.
type guard struct {
	at      time.Time   // when the next start is due; zero = none is
	reason  string      // for the epoch that it starts
	exits   []time.Time // abnormal exits within the window, oldest first
	mourned []mourned   // those that served and ended, and have no live successor yet
	streak  int         // exits in a row, none further than forgetExits from the one before
}

// mourned is an epoch of which the keeper's note and the file stay, for an agent after this one.
type mourned struct{ id, bootstrap string }

// mourns tells whether an epoch, by its keeper's name, ended before it had a successor.
func (g *guard) mourns(id string) bool {
	return slices.ContainsFunc(g.mourned, func(m mourned) bool { return m.id == id })
}

// exited takes in that a process ended.
func (s *Supervisor) exited(ended Process) {
	p := s.find(ended.ID)
	if p == nil && s.guard.mourns(ended.ID) {
		return
	}
	if p == nil {
		s.forget(ended.ID)
		return
	}
	if p.PID == 0 {
		s.startedAs(p, ended.PID)
	}
	exit := ended.Exit
	if exit == nil {
		exit = &Exit{Code: -1, At: time.Now()}
	}
	served := p.Phase == Live && s.stop == nil
	if served {
		s.guard.mourned = append(s.guard.mourned, mourned{p.ID, p.BootstrapPath})
	}
	s.bury(p, exit, s.options.Explain(exit.Code, exit.Signal, exit.CoreDump, exit.LastLines))
	if !served {
		s.forget(ended.ID)
	}
}

// forgetMourned lets the keeper forget the epochs that have a live successor. Until then an agent after this one must
// learn of them: from the epochs that live it could not tell that none of them serves, nor what is known to work.
func (s *Supervisor) forgetMourned() {
	for _, m := range s.guard.mourned {
		s.forget(m.id)
	}
	s.removeMourned()
}

// dropMourned removes what is left of epochs that the keeper of now never had.
func (s *Supervisor) dropMourned(listed []Process) {
	all := s.guard.mourned
	s.guard.mourned = nil
	for _, m := range all {
		if slices.ContainsFunc(listed, func(one Process) bool { return one.ID == m.id }) {
			s.guard.mourned = append(s.guard.mourned, m)
		}
	}
	for _, m := range all {
		if !s.guard.mourns(m.id) {
			s.removeBootstrap(m.bootstrap)
		}
	}
}

// removeMourned removes what is left of the epochs that ended before they had a successor.
func (s *Supervisor) removeMourned() {
	gone := s.guard.mourned
	s.guard.mourned = nil
	for _, m := range gone {
		s.removeBootstrap(m.bootstrap)
	}
}

// bury takes a process that ended out of those that live, and decides what its end means.
func (s *Supervisor) bury(p *process, exit *Exit, cause string) {
	phase, now := p.Phase, time.Now()
	p.Phase, p.Exit, p.Cause, p.Exited = Exited, exit, cause, now
	if !exit.At.IsZero() {
		p.Exited = exit.At
	}
	if p.asked != "" && !p.killed.IsZero() && exit.Signal != "" {
		p.Cause = "was killed by the agent: " + p.asked // who did it is known: no guess at the kernel
	}
	sentence := fmt.Sprintf("epoch %d %s", p.Number, p.Cause)
	switch {
	case p.asked != "" && p.Cause == cause:
		sentence += " (" + p.asked + ")"
	case phase == Draining && p.idle:
		sentence += " (no client was connected to it any more)"
	case phase == Draining && p.child == "hot" && now.Before(p.Ends.Add(-time.Second)):
		sentence += fmt.Sprintf(" (%s before it was to; the epoch after it goes on)", p.Ends.Sub(now).Round(time.Second))
	}
	s.event(condition.KindEpochExited, p, sentence, map[string]string{
		"cause": p.Cause, "status": strconv.Itoa(exit.Code), "signal": exit.Signal})
	if p.stopDrain != nil {
		p.stopDrain()
	}
	close(p.ended)
	s.remove(p)
	s.history = append(s.history, p.Epoch)
	if len(s.history) > remembered {
		s.history = slices.Delete(s.history, 0, len(s.history)-remembered)
	}

	a := s.attempt
	switch {
	case a != nil && a.process == p && a.failure != nil:
		s.conclude(a)
	case a != nil && a.process == p:
		a.cancel(errExited)
	case a != nil && a.parent == p:
		s.orphaned(a)
	}
	if phase == Live && s.stop == nil {
		s.crashed(p)
	}
	if len(s.processes) == 0 {
		s.last = nil
	}
}

// remove takes a process out of those that live.
func (s *Supervisor) remove(p *process) {
	s.processes = slices.DeleteFunc(s.processes, func(other *process) bool { return other == p })
	s.removeBootstrap(p.BootstrapPath)
}

// orphaned gives an attempt whose parent died the time it may need if it was nearly live, then ends it: nobody serves, and
// what it starts is not known to work; besides, a child that lost its parent waits for it for ten seconds, then aborts.
func (s *Supervisor) orphaned(a *attempt) {
	a.parentGone = true
	child := a.process
	if !a.started {
		a.cancel(errOrphan)
		return
	}
	s.after(parentGrace, func() {
		if s.attempt == a && a.process == child {
			a.cancel(errOrphan)
		}
	})
}

// crashed takes in that nobody serves any more because p exited, or did not get live, and sets when to start again.
func (s *Supervisor) crashed(p *process) {
	now, settings := time.Now(), s.options.Settings()
	g := &s.guard
	if len(g.exits) > 0 && now.Sub(g.exits[len(g.exits)-1]) > forgetExits {
		g.streak = 0
	}
	g.exits = append(slices.DeleteFunc(g.exits, func(at time.Time) bool { return now.Sub(at) > max(settings.Window, forgetExits) }), now)
	g.streak++
	for _, old := range s.older() {
		if old.child == "hot" {
			old.Ends = time.Time{} // nobody will end it; the next epoch takes over from it
		}
	}
	within := 0
	for _, at := range g.exits {
		if now.Sub(at) <= settings.Window {
			within++
		}
	}
	if settings.Limit > 0 && within > settings.Limit {
		s.giveUp(p, within, settings)
		return
	}
	delay := g.delay(settings)
	g.at = now.Add(delay)
	g.reason = fmt.Sprintf("epoch %d %s", p.Number, p.Cause)
	when := "it is started again at once"
	if delay > 0 {
		when = fmt.Sprintf("it is started again in %s", delay)
	}
	s.options.Board.Raise(conditionDown, condition.Error,
		fmt.Sprintf("No Envoy serves: epoch %d %s; %s.", p.Number, p.Cause, when))
}

// unstarted schedules the next start after one that came to no process (no space for the bootstrap): nothing exited, so it
// does not count for restart_limit.
func (s *Supervisor) unstarted(a *attempt) {
	s.guard.streak++
	delay := max(s.guard.delay(s.options.Settings()), s.options.Settings().BackoffMin)
	s.guard.at = time.Now().Add(delay)
	if !a.guard {
		s.guard.reason = a.reason
	}
	s.options.Board.Raise(conditionDown, condition.Error, fmt.Sprintf("No Envoy serves: %v; next try in %s.", a.failure, delay))
}

// blocked reports whether Envoy could not start now, and sets when to look again. No start is tried
// meanwhile, so that none counts towards the limit.
func (s *Supervisor) blocked() bool {
	err := s.options.Obstacle()
	if err == nil {
		return false
	}
	s.guard.at = time.Now().Add(obstaclePause)
	s.options.Board.Raise(conditionDown, condition.Error, fmt.Sprintf("No Envoy serves, and none can start: %v", err))
	return true
}

// delay is how long to wait before the next start: not at all after the first exit, then doubling.
func (g *guard) delay(settings Settings) time.Duration {
	if g.streak <= 1 {
		return 0
	}
	if shift := g.streak - 2; shift < 30 {
		return min(settings.BackoffMin<<shift, settings.BackoffMax)
	}
	return settings.BackoffMax
}

func (s *Supervisor) giveUp(p *process, within int, settings Settings) {
	why := fmt.Sprintf("Envoy exited %d times within %s (restart_limit = %d), the last time because it %s",
		within, settings.Window, settings.Limit, p.Cause)
	sentence := why + "; giving up."
	s.options.Board.Raise(ConditionGaveUp, condition.Error, sentence)
	s.event(condition.KindGaveUp, p, sentence, nil)
	s.removeMourned()
	s.finished = true
	s.outcome = fmt.Errorf("%w: %s", ErrGaveUp, why)
	s.killAll("given up")
}
