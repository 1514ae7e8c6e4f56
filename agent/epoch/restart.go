package epoch

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// The codes of this package's conditions.
const (
	conditionDown      = "envoy-down"
	conditionAdminLost = "admin-lost"
	conditionSilent    = "envoy-silent"
	conditionKeeper    = "keeper-lost"

	// ConditionGaveUp is raised when Envoy has exited too often, together with the event gave-up.
	ConditionGaveUp = "gave-up"
)

// backOff is the state of restarts after exits of Envoy.
type backOff struct {
	at      time.Time   // when the next start is due; zero: no start is due
	reason  string      // of the epoch that it starts
	exits   []time.Time // abnormal exits within the window, oldest first
	streak  int         // consecutive exits, each at most forgetExits after the one before
	checked bool        // a check found no obstacle to a start of Envoy
	checkBy time.Time   // deadline of the running check for obstacles; zero: none runs
}

// delay returns the pause before the next start: none after the first exit, then doubling.
func (b *backOff) delay(c config.Envoy) time.Duration {
	return backoff.Exponential(c.RestartBackoffMin, c.RestartBackoffMax, b.streak-1)
}

// crashed counts an exit and schedules a restart, because no epoch serves since p exited or failed.
// An exit together with the keeper is no failure of Envoy and counts for neither back-off nor
// restart_limit.
func (m *machine) crashed(p *process) {
	if p.exit != nil && p.exit.WithKeeper {
		m.restart(p, 0)
		return
	}
	window, b := m.config.RestartWindow, &m.backOff
	if len(b.exits) > 0 && m.now.Sub(b.exits[len(b.exits)-1]) > forgetExits {
		b.streak = 0
	}
	b.exits = append(slices.DeleteFunc(b.exits, func(at time.Time) bool {
		return m.now.Sub(at) > max(window, forgetExits)
	}), m.now)
	b.streak++
	within := 0
	for _, at := range b.exits {
		if m.now.Sub(at) <= window {
			within++
		}
	}
	if limit := m.config.RestartLimit; limit > 0 && within > limit {
		m.giveUp(p, within)
		return
	}
	m.restart(p, b.delay(m.config))
}

// restart schedules the start of an epoch after p ended.
func (m *machine) restart(p *process, delay time.Duration) {
	for _, old := range m.older() {
		if old.endedBy == endedByChild {
			old.Ends = time.Time{} // no longer ended by a child: the next epoch takes over from it
		}
	}
	m.backOff.at = m.now.Add(delay)
	cause := cmp.Or(p.ExitCause, "is not live and does not end") // the process survived SIGKILL
	m.backOff.reason = fmt.Sprintf("epoch %d %s", p.Number, cause)
	when := "it is started again at once"
	if delay > 0 {
		when = fmt.Sprintf("it is started again in %s", delay)
	}
	m.raise(conditionDown, condition.Error, "No Envoy serves: epoch %d %s; %s.", p.Number,
		cause, when)
}

// unstarted schedules the next start after an attempt that created no process. Such an attempt does
// not count for restart_limit.
func (m *machine) unstarted(a *attempt) {
	m.backOff.streak++
	delay := max(m.backOff.delay(m.config), m.config.RestartBackoffMin)
	m.backOff.at = m.now.Add(delay)
	if !a.repair {
		m.backOff.reason = a.reason
	}
	m.raise(conditionDown, condition.Error, "No Envoy serves: %v; next try in %s.", a.failure,
		delay)
}

func (m *machine) giveUp(p *process, within int) {
	why := fmt.Sprintf("Envoy exited %d times within %s (restart_limit = %d), the last time "+
		"because it %s", within, m.config.RestartWindow, m.config.RestartLimit, p.ExitCause)
	m.raise(ConditionGaveUp, condition.Error, "%s; giving up.", why)
	m.publish(notice{kind: condition.KindGaveUp, epoch: p.Number, sentence: why + "; giving up.",
		level: slog.LevelError, message: "giving up: Envoy exited too often",
		args: []any{"exits", within, "window", m.config.RestartWindow, "restart_limit",
			m.config.RestartLimit, "cause", p.ExitCause}})
	m.finish(fmt.Errorf("%w: %s", ErrGaveUp, why))
	for _, p := range m.processes {
		m.kill(p, "given up")
	}
}

// unobstructed postpones a due restart until a check has found no obstacle, so that a start that
// cannot succeed does not count for restart_limit. It waits for the check for at most provenFirst.
func (m *machine) unobstructed(live *process, due time.Time) time.Time {
	b := &m.backOff
	if live != nil || b.checked || m.now.Before(due) {
		return due
	}
	if b.checkBy.IsZero() {
		b.checkBy = m.now.Add(provenFirst)
		m.do(checkObstacle{})
	}
	return b.checkBy
}

// obstacleChecked is the event of a check for obstacles to a start of Envoy.
type obstacleChecked struct{ err error }

func (e obstacleChecked) apply(m *machine) {
	b := &m.backOff
	running := !b.checkBy.IsZero()
	b.checkBy = time.Time{}
	switch {
	case !running || m.live() != nil || b.at.IsZero():
	case e.err == nil:
		b.checked = true
	default:
		b.at = m.now.Add(obstaclePause)
		m.raise(conditionDown, condition.Error, "No Envoy serves, and none can start: %v", e.err)
	}
}
