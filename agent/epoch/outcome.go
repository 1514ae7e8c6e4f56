package epoch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// handshakeTroubles are Envoy's last lines when the hot restart failed and not the configuration.
// Measured with 1.40; all but the last two pass once the flag in shared memory is cleared, at the
// latest at the second try.
var handshakeTroubles = []string{
	"previous envoy process is still initializing",
	"parent did not respond as expected",
	"hot restart sendmsg() failed",
	"unable to bind domain socket",
	"cannot open shared memory region",
}

func handshakeTrouble(p *process) bool {
	return p.exit != nil && slices.ContainsFunc(handshakeTroubles, func(trouble string) bool {
		return strings.Contains(strings.Join(p.lastLines, "\n"), trouble)
	})
}

// commit makes the attempt's process the live epoch.
func (m *machine) commit(a *attempt) {
	m.attempt = nil
	p := a.process
	previous := -1
	if a.parent != nil && a.mode != First {
		previous = a.parent.Number
	}
	p.Live = m.now
	m.setLast(p)
	m.replaceAt, m.backOff.at = time.Time{}, time.Time{}
	if a.spec.Command != nil {
		// The spec of a repair may be older than one that was renewed meanwhile.
		if !a.repair || m.lastGood == nil || m.lastGood.Hash != a.spec.Hash {
			m.lastGood = a.spec
		}
		m.lastTried = nil
	}
	if !p.alive() { // p was live for a moment: the epoch before it has closed its listeners
		m.replaceOlder(p)
		m.refuse(a, errExitedLive)
		m.crashed(p)
		return
	}
	m.forgetUnreplaced()
	m.lastGoodFailed = false
	p.State = Live
	m.annotate(p)
	m.replaceOlder(p)
	after := m.now.Sub(p.Started).Round(time.Millisecond)
	m.publish(notice{kind: condition.KindEpochLive, epoch: p.Number,
		sentence: fmt.Sprintf("epoch %d is live after %s (%s)", p.Number, after, p.Mode),
		message:  "epoch is live", args: []any{"after", after, "mode", p.Mode}})
	m.clear(conditionDown)
	m.clear(conditionAdminLost)
	m.clear(conditionSilent)
	m.probe.at = m.now.Add(probeInterval)
	result := Result{Epoch: p.Number, Previous: previous, Mode: p.Mode}
	switch {
	case len(m.drain.undrains) > 0:
		m.undrained(p, result)
	case m.drain.wanted:
		m.drainAgain(p)
	}
	m.reply(a.calls, answer{result: result})
}

func (m *machine) setLast(p *process) {
	last := *p
	m.last = &last
}

// replaceOlder makes all epochs but the newest drain.
func (m *machine) replaceOlder(newest *process) {
	parent := m.parentOf(newest)
	for _, p := range m.processes {
		if p == newest || p.State == Starting {
			continue
		}
		served := p.State.Serves()
		p.State = Draining
		switch {
		case newest.hot && p == parent:
			// Its child ends it this long after the child became live.
			p.endedBy, p.Ends = endedByChild, newest.Live.Add(newest.spec.ParentShutdown)
		case served:
			p.endedBy, p.Ends = endedBySupervisor, m.now.Add(p.spec.ParentShutdown)
			m.drainSideBySide(p, m.now)
		case p.idle && p.endedBy == endedByChild:
			// Its child ended it when the child became a parent itself.
			if newest.Mode == Hot && newest.Lineage == p.Lineage {
				p.Ends = newest.Live
			}
		case p.endedBy != endedBySupervisor || p.Ends.IsZero():
			// It lost the child that would end it; its listeners and its admin are closed already.
			p.endedBy, p.Ends = endedBySupervisor, newest.Live.Add(newest.spec.ParentShutdown)
		case !p.closes.IsZero():
			m.steer(p) // the epoch that got its connections has died
		}
		m.annotate(p)
	}
}

// conclude decides what follows a failed process, which has exited: a retry, side by side or a
// refusal.
func (m *machine) conclude(a *attempt) {
	p := a.process
	exit := p.exit
	if a.spec == m.lastGood { // an exit by somebody else's SIGKILL says nothing of the spec
		foreign := exit != nil && (exit.WithKeeper || exit.Signal == "SIGKILL" && p.ending == "")
		m.lastGoodFailed = m.lastGoodFailed || !foreign
	}
	if p.hot && a.started { // its flag in shared memory would block later epochs
		m.do(clearInitializing{p.Lineage, p.Number})
	}
	trouble := handshakeTrouble(p) && errors.Is(a.failure, errExited)
	switch {
	case a.adopted || m.stop != nil || errors.Is(a.failure, ErrAborted):
	case a.parentGone:
		m.requeue(a)
		return
	case a.mode == Hot && (errors.Is(a.failure, errSilent) || errors.Is(a.failure, errHandshake)),
		a.mode == Hot && trouble && a.tries >= handshakeTries-1:
		m.warn("no hot restart: starting side by side", "epoch", p.Number, "error", a.failure)
		a.sideBySide, a.tries = true, 0
		m.begin(a)
		return
	case trouble && a.tries < handshakeTries-1:
		a.tries++
		if a.mode != Hot {
			a.avoid = append(a.avoid, p.Lineage)
		}
		m.begin(a)
		return
	}
	m.attempt = nil
	m.refuse(a, a.failure)
	live := m.live()
	switch {
	case live == nil && (m.stop != nil || a.started && a.parentGone):
		// Nothing is started during a stop; the exit of the parent has scheduled a start.
	case live == nil && a.started && p.PID != 0:
		m.crashed(p)
	case live == nil:
		if !errors.Is(a.failure, ErrAborted) && (a.repair || m.backOff.at.IsZero()) {
			m.unstarted(a)
		}
	case a.started && a.mode == Hot:
		m.examine(live)
		// Ended by a signal of somebody else it may have been live between two polls; then the
		// live epoch refuses connections.
		if exit != nil && exit.Signal != "" && p.ending == "" && a.answered {
			m.replaceAt = m.now
			if a.repair {
				m.replaceAt = m.now.Add(m.config.RestartBackoffMin)
			}
			m.backOff.reason = fmt.Sprintf("epoch %d was ended by %s while it took over", p.Number,
				exit.Signal)
		}
	}
}

// requeue makes a request wait again whose attempt failed through no fault of its own. A newer
// request wins.
func (m *machine) requeue(a *attempt) {
	m.attempt = nil
	if len(a.calls) == 0 {
		if m.live() == nil && m.backOff.at.IsZero() {
			m.backOff.at = m.now
		}
		return
	}
	if m.pending == nil {
		m.pending = &pending{spec: a.spec, reason: a.reason}
	}
	m.pending.calls = append(a.calls, m.pending.calls...)
	m.pending.abort = slices.Concat(a.abort, m.pending.abort)
}

// refuse answers the callers of a failed attempt.
func (m *machine) refuse(a *attempt, cause error) {
	p := a.process
	if !a.started {
		m.removeBootstrap(p.BootstrapPath)
	}
	var more []string
	if p.ExitCause != "" && p.ending == "" {
		more = append(more, p.ExitCause)
	}
	refused := m.refusal(p.Number, cause, more...)
	if p.exit != nil {
		refused.LastLines = p.lastLines
	}
	m.warn("new epoch failed, configuration refused",
		"epoch", refused.Number, "why", strings.Join(refused.Reasons, "; "))
	m.reply(a.calls, answer{err: refused})
	if a.undrain {
		m.refuseUndrain(refused)
	}
}
