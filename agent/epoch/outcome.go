package epoch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// handshakeTroubles are what Envoy's last lines say when not the configuration but the hot restart failed. Measured with
// 1.40; all but the last two pass once the flag in shared memory is cleared, at the latest at the second try.
var handshakeTroubles = []string{
	"previous envoy process is still initializing",
	"parent did not respond as expected",
	"hot restart sendmsg() failed",
	"unable to bind domain socket",
	"cannot open shared memory region",
}

func handshakeTrouble(exit *Exit) bool {
	if exit == nil {
		return false
	}
	for _, line := range exit.LastLines {
		for _, trouble := range handshakeTroubles {
			if strings.Contains(line, trouble) {
				return true
			}
		}
	}
	return false
}

// commit makes the attempt's process the live epoch.
func (s *Supervisor) commit(a *attempt) {
	s.attempt = nil
	p, now := a.process, time.Now()
	previous := -1
	if a.parent != nil && a.mode != First {
		previous = a.parent.Number
	}
	p.Live = now
	s.last, s.doubt, s.guard.at = p, time.Time{}, time.Time{}
	if a.spec.Command != nil {
		if renewed := a.guard && s.good != nil && s.good.Hash == a.spec.Hash; !renewed { // the guard's may have got old meanwhile
			s.good = a.spec
		}
		s.wanted = nil
	}
	result := Result{Epoch: p.Number, Previous: previous, Mode: p.Mode}
	if !p.alive() { // it was live, if only for a moment: the epoch before it has closed its listeners
		s.replaceOlder(p)
		s.refuse(a, errExitedLive)
		s.crashed(p)
		return
	}
	s.forgetMourned()
	if frozen := a.spec.frozen; frozen != nil {
		frozen.tried = false
	}
	p.Phase = Live
	s.annotate(p)
	s.replaceOlder(p)
	s.event(condition.KindEpochLive, p, fmt.Sprintf("epoch %d is live after %s (%s)", p.Number,
		now.Sub(p.Started).Round(time.Millisecond), p.Mode), nil)
	s.options.Board.Clear(conditionDown)
	s.options.Board.Clear(conditionAdminLost)
	s.options.Board.Clear(conditionSilent)
	s.probeAt = now.Add(probeInterval)
	switch {
	case len(s.undraining) > 0:
		s.undrained(p, result)
	case s.drained:
		s.drainAgain(p)
	}
	s.reply(a.callers, answer{result: result})
}

// replaceOlder puts all epochs but the newest on their way out.
func (s *Supervisor) replaceOlder(newest *process) {
	parent := s.parentOf(newest)
	for _, p := range s.processes {
		if p == newest || p.Phase == Starting {
			continue
		}
		wasLive := p.Phase == Live
		p.Phase = Draining
		switch {
		case newest.hot && p == parent:
			// Its child tells it to exit this long after it got live.
			p.child, p.Ends = "hot", newest.Live.Add(newest.spec.ParentShutdown)
		case wasLive:
			s.drainSideBySide(p)
		case p.idle && p.child == "hot":
			// Its child ends it. That has happened already if the child had one itself.
			if newest.Mode == Hot && newest.Lineage == p.Lineage {
				p.Ends = newest.Live
			}
		case p.child != "side" || p.Ends.IsZero():
			// It lost its child, and with it the one that would end it; its listeners and its admin are closed already.
			p.child, p.Ends = "side", newest.Live.Add(newest.spec.ParentShutdown)
		case !p.closes.IsZero():
			closes := p.closes
			s.help(func(ctx context.Context) { s.steer(ctx, p, closes) }) // the one that got its connections has died
		}
		s.annotate(p)
	}
}

// conclude decides what follows a failed process, which has exited by now: another try, another way, or a refusal.
func (s *Supervisor) conclude(a *attempt) {
	p, exit := a.process, a.process.Exit
	if frozen := a.spec.frozen; frozen != nil { // who was killed by somebody else says nothing of its configuration
		frozen.tried = frozen.tried || exit == nil || exit.Signal != "SIGKILL" || p.asked != ""
	}
	if p.hot && a.started {
		// Whatever failed, its flag blocks every later epoch of this lineage.
		err := s.ask(func(ctx context.Context, k Keeper) error { return k.ClearInitializing(ctx, p.Lineage) })
		if err != nil {
			s.log.Warn("the flag of a failed start could not be cleared", "epoch", p.Number, "error", err)
		}
	}
	trouble := handshakeTrouble(exit) && errors.Is(a.failure, errExited)
	switch {
	case a.adopted || s.stop != nil || errors.Is(a.failure, ErrAborted):
	case a.parentGone:
		s.requeue(a)
		return
	case a.mode == Hot && (errors.Is(a.failure, errSilent) || errors.Is(a.failure, errHandshake)),
		a.mode == Hot && trouble && a.tries >= handshakeTries-1:
		s.log.Warn("no hot restart: starting side by side", "epoch", p.Number, "error", a.failure)
		a.sideBySide, a.tries = true, 0
		s.begin(a)
		return
	case trouble && a.tries < handshakeTries-1:
		a.tries++
		if a.mode != Hot { // the name space of a lineage that was to be founded is taken
			if a.avoid == nil {
				a.avoid = map[int]bool{}
			}
			a.avoid[p.Lineage] = true
		}
		s.begin(a)
		return
	}
	s.attempt = nil
	s.refuse(a, a.failure)
	live := s.live()
	switch {
	case live == nil && !a.started && s.stop == nil && !errors.Is(a.failure, ErrAborted) && (a.guard || s.guard.at.IsZero()):
		s.unstarted(a)
	case live == nil && !a.started:
		// The guard, if it is at it, goes on as it was.
	case live == nil && a.parentGone:
		// The guard saw the parent's exit.
	case live == nil && a.started && s.stop == nil:
		s.crashed(p)
	case live != nil && a.started && a.mode == Hot:
		s.examine(live)
		// Ended by a signal that we did not send, it may have been live between two questions; then the epoch before
		// it refuses connections. A fresh start of what is known to work is right in either case.
		if exit != nil && exit.Signal != "" && p.asked == "" && a.answered {
			s.doubt = time.Now()
			if a.guard {
				s.doubt = s.doubt.Add(s.options.Settings().BackoffMin)
			}
			s.guard.reason = fmt.Sprintf("epoch %d was ended by %s while it took over", p.Number, exit.Signal)
		}
	}
}

// requeue puts an attempt's request back to wait, as it failed through no fault of its own. A newer one wins.
func (s *Supervisor) requeue(a *attempt) {
	s.attempt = nil
	if len(a.callers) == 0 {
		if s.live() == nil && s.guard.at.IsZero() {
			s.guard.at = time.Now()
		}
		return
	}
	if s.pending == nil {
		s.pending = &pending{spec: a.spec, reason: a.reason}
	}
	s.pending.callers = append(a.callers, s.pending.callers...)
}

// refuse tells the callers, and everybody, why the attempt failed.
func (s *Supervisor) refuse(a *attempt, cause error) {
	if !a.started {
		s.removeBootstrap(a.process.BootstrapPath)
	}
	var more []string
	if a.process.Cause != "" && a.process.asked == "" {
		more = append(more, a.process.Cause)
	}
	refused := s.refusal(a.process.Number, cause, more...)
	if a.process.Exit != nil {
		refused.LastLines = a.process.Exit.LastLines
	}
	s.log.Warn("epoch refused", "epoch", refused.Number, "why", strings.Join(refused.Reasons, "; "))
	s.reply(a.callers, answer{err: refused})
	if a.undrain {
		s.refuseUndrain(refused)
	}
}
