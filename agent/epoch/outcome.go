package epoch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// handshakeTroubles are texts in Envoy's last log lines that show a failed hot restart rather than
// an invalid configuration. With Envoy 1.40, clearing the flag in shared memory prevents the first
// three, at the latest at the second retry.
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
	if a.parent != nil && a.mode != FirstStart {
		previous = a.parent.Number
	}
	p.LiveSince = m.now
	m.setLast(p)
	m.replaceAt, m.backOff.at = time.Time{}, time.Time{}
	if a.spec.Command != nil {
		// The attempt may be a repair with an older version of lastGood: updateSpec may
		// have replaced lastGood while the attempt ran.
		if !a.repair || m.lastGood == nil || m.lastGood.Digest != a.spec.Digest {
			m.lastGood = a.spec
		}
		m.lastTried = nil
	}
	// p has exited already, but its parent closed the listeners when p became live
	if !p.alive() {
		m.replaceOlder(p)
		m.refuse(a, errExitedLive)
		m.crashed(p)
		return
	}
	m.forgetUnreplaced()
	m.lastGoodFailed = false
	p.State = StateLive
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

// replaceOlder makes all epochs older than newest drain.
func (m *machine) replaceOlder(newest *process) {
	parent := m.parentOf(newest)
	for _, p := range m.processes {
		if p == newest || p.State == StateStarting {
			continue
		}
		served := p.State.Serves()
		p.State = StateDraining
		switch {
		case newest.hot && p == parent:
			// The child ends its parent when this time has passed since the child became live.
			p.endedBy, p.LatestDrainEnd = endedByChild, newest.LiveSince.Add(newest.spec.ParentShutdownTime)
		case served:
			p.endedBy, p.LatestDrainEnd = endedBySupervisor, m.now.Add(p.spec.ParentShutdownTime)
			m.drainSideBySide(p, m.now)
		case p.idle && p.endedBy == endedByChild:
			// p's child ended p when newest, the child of that child, started its hot-restart
			// handshake.
			if newest.Mode == HotRestart && newest.Lineage == p.Lineage {
				p.LatestDrainEnd = newest.LiveSince
			}
		case p.endedBy != endedBySupervisor || p.LatestDrainEnd.IsZero():
			// p's child has exited before it could end p. The listeners and the admin interface of
			// p are closed already.
			p.endedBy, p.LatestDrainEnd = endedBySupervisor, newest.LiveSince.Add(newest.spec.ParentShutdownTime)
		case !p.closes.IsZero():
			m.steer(p) // the epoch to which p's new connections were steered has exited
		}
		m.annotate(p)
	}
}

// conclude decides what follows the exit of a failed attempt's process: a retry, a start side by
// side, or an error for the callers.
func (m *machine) conclude(a *attempt) {
	p := a.process
	exit := p.exit
	// SIGKILL from elsewhere and an exit of the keeper are no evidence against the spec
	if a.spec == m.lastGood {
		foreign := exit != nil && (exit.KilledAtKeeperExit || exit.Signal == "SIGKILL" &&
			p.ending == "")
		m.lastGoodFailed = m.lastGoodFailed || !foreign
	}
	// clear the flag that the process left in shared memory and that would block later epochs
	if p.hot && a.started {
		m.do(clearInitializing{p.Lineage, p.Number})
	}
	trouble := handshakeTrouble(p) && errors.Is(a.failure, errExited)
	switch {
	case a.adopted || m.stop != nil || errors.Is(a.failure, errAborted):
	case a.parentGone:
		m.requeue(a)
		return
	case a.mode == HotRestart &&
		(errors.Is(a.failure, errSilent) || errors.Is(a.failure, errHandshake)),
		a.mode == HotRestart && trouble && a.tries >= handshakeTries-1:
		m.warn("no hot restart: starting side by side", "epoch", p.Number, "error", a.failure)
		a.sideBySide, a.tries = true, 0
		m.begin(a)
		return
	case trouble && a.tries < handshakeTries-1:
		a.tries++
		if a.mode != HotRestart {
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
		// Nothing is started: either the agent stops, or the parent's exit has already scheduled
		// the next start.
	case live == nil && a.started && p.PID != 0:
		m.crashed(p)
	case live == nil:
		if !errors.Is(a.failure, errAborted) && (a.repair || m.backOff.at.IsZero()) {
			m.unstarted(a)
		}
	case a.started && a.mode == HotRestart:
		m.examine(live)
		// A process that something else killed may have been live between two polls. In this case
		// the live epoch, its parent, has closed its listeners and must be replaced.
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

// requeue repeats the request of an attempt that failed for a reason outside of its spec. If a
// newer request is pending, requeue adds only the callers to the newer one.
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

// refuse returns an error to the callers of a failed attempt.
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
