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

// Codes of this package's conditions.
const (
	conditionDown      = "envoy-down"
	conditionAdminLost = "admin-lost"
	conditionSilent    = "envoy-silent"
	conditionKeeper    = "keeper-lost"

	// ConditionRestartsExhausted is raised when Envoy has exited too often, together with an event
	// of kind condition.KindRestartsExhausted.
	ConditionRestartsExhausted = "gave-up"
)

// backOff is the state of restarts after exits of Envoy.
type backOff struct {
	at      time.Time   // when the next start is due; zero: no start is due
	reason  string      // reason of the epoch that the next start creates
	exits   []time.Time // abnormal exits within restart_window, oldest first
	streak  int         // consecutive exits, each at most forgetExits after the one before
	checked bool        // a check found no obstacle to a start of Envoy
	checkBy time.Time   // deadline of the running check for obstacles; zero: none runs
}

// delay returns the pause before the next start: none after the first exit of a streak, then a
// pause that doubles with each exit.
func (b *backOff) delay(c config.Envoy) time.Duration {
	return backoff.Exponential(c.RestartBackoffMin, c.RestartBackoffMax, b.streak-1)
}

// crashed counts an exit and schedules a restart, because no epoch serves any more: p has exited or
// failed. An exit that the end of the keeper caused does not count, neither for the back-off nor
// for restart_limit.
func (m *machine) crashed(p *process) {
	if p.exit != nil && p.exit.KilledAtKeeperExit {
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

// restart schedules the start of an epoch after p has ended or hangs.
func (m *machine) restart(p *process, delay time.Duration) {
	for _, old := range m.older() {
		if old.endedBy == endedByChild {
			// the child of old has exited and cannot end it; the next epoch becomes its child
			old.LatestDrainEnd = time.Time{}
		}
	}
	m.backOff.at = m.now.Add(delay)
	// the second text is for a process that survived SIGKILL
	cause := cmp.Or(p.ExitCause, "is not live and does not end")
	m.backOff.reason = fmt.Sprintf("epoch %d %s", p.Number, cause)
	when := "it is started again at once"
	if delay > 0 {
		when = fmt.Sprintf("it is started again in %s", delay)
	}
	m.raise(conditionDown, condition.Error, "No Envoy serves: epoch %d %s; %s.", p.Number,
		cause, when)
}

// unstarted schedules the next start after an attempt that created no process. The attempt does not
// count for restart_limit.
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
	m.raise(ConditionRestartsExhausted, condition.Error, "%s; giving up.", why)
	m.publish(notice{kind: condition.KindRestartsExhausted, epoch: p.Number,
		sentence: why + "; giving up.",
		level:    slog.LevelError, message: "giving up: Envoy exited too often",
		args: []any{"exits", within, "window", m.config.RestartWindow, "restart_limit",
			m.config.RestartLimit, "cause", p.ExitCause}})
	m.finish(fmt.Errorf("%w: %s", ErrRestartsExhausted, why))
	for _, p := range m.processes {
		m.kill(p, "given up")
	}
}

// unobstructed postpones a due restart until a check finds no obstacle, such as a port in use.
// Starts that cannot succeed would count for restart_limit. It waits for a result of the check for
// at most provenFirst.
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

// obstacleChecked is the event of a completed check for obstacles to a start of Envoy.
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
