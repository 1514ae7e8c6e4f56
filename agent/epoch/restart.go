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

	// ConditionGaveUp says that Envoy exited too often, as the event gave-up does.
	ConditionGaveUp = "gave-up"
)

// backOff schedules the restart of an Envoy that exited.
type backOff struct {
	at      time.Time   // the next start is due then; zero: none is
	reason  string      // of the epoch that it starts
	exits   []time.Time // abnormal exits within the window, oldest first
	streak  int         // exits in a row, none more than forgetExits after the one before
	checked bool        // no obstacle keeps Envoy from starting
	checkBy time.Time   // the check for obstacles runs until then at the latest; zero: it does not
}

// delay returns the wait before the next start: none after the first exit, then doubling.
func (b *backOff) delay(c config.Envoy) time.Duration {
	return backoff.Exponential(c.RestartBackoffMin, c.RestartBackoffMax, b.streak-1)
}

// crashed counts an exit and schedules a restart: nobody serves since p exited or failed to become
// live. An exit with the keeper is none of Envoy's failures: it counts for neither back-off nor
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

// restart schedules the start of the next epoch since p ended.
func (m *machine) restart(p *process, delay time.Duration) {
	for _, old := range m.older() {
		if old.endedBy == endedByChild {
			old.Ends = time.Time{} // nobody will end it; the next epoch takes over from it
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

// unstarted schedules the next start after one that created no process. It does not count for
// restart_limit.
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

// unobstructed postpones a restart that is due until a check has found nothing that keeps Envoy
// from starting, so that no start is tried in vain and counts for restart_limit. A check that takes
// longer than provenFirst is not waited for.
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
