package epoch

import (
	"fmt"
	"log/slog"
	"maps"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// event is something that happened: a call, news of the keeper, the result of an action, or time
// that has passed (tick).
type event struct {
	at      time.Time
	trigger trigger
}

// trigger is the content of an event. Its method makes the transition.
type trigger interface{ apply(m *machine) }

// action is something that the executor carries out after a transition. It returns at once; its
// result, if it has one, is an event.
type action interface{ run(x *executor) }

// tick is the event of a time that the state requested (state.wake).
type tick struct{}

func (tick) apply(*machine) {}

// configured is the event of Configure.
type configured struct{ config config.Envoy }

func (e configured) apply(m *machine) { m.config = e.config }

// machine makes one transition.
type machine struct {
	state
	now     time.Time
	actions []action
}

// next returns the state after an event, and what is to be done. It is a pure function: it reads no
// clock, waits for nothing and leaves was unchanged.
func next(was state, e event) (state, []action) {
	m := &machine{state: was.clone(), now: e.at}
	e.trigger.apply(m)
	m.reconcile()
	return m.state, m.actions
}

// reconcile makes the transitions that depend on the state and the time alone, and sets wake.
func (m *machine) reconcile() {
	m.wake = time.Time{}
	m.reconcileAttempt()
	m.reconcileDrain()
	switch m.classify() {
	case finished, adopting:
	case stopping:
		m.reconcileStop()
	case keeperLost:
		m.reconcileLost()
	case idle, attempting, waiting, backingOff:
		m.endOverdue()
		m.answerUnchanged()
		if m.attempt == nil {
			m.startNext()
		}
		m.reconcileProbe()
	}
	m.announceWaiting()
	m.status = m.classify()
	for _, p := range m.processes {
		m.publishState(p)
	}
}

// publishState copies the part of the supervisor's state that readers see into the serving epoch.
func (m *machine) publishState(p *process) {
	p.Awaits, p.MayRefuse = "", false
	if !p.State.Serves() {
		return
	}
	p.Awaits, p.MayRefuse = m.awaits, !m.replaceAt.IsZero()
	switch {
	case m.stop != nil:
		p.State = Stopping
	case m.attempt != nil || m.probe.examining:
		p.State = HandingOver
	default:
		p.State = Live
	}
}

// do adds an action.
func (m *machine) do(a action) { m.actions = append(m.actions, a) }

// wakeAt requests a tick.
func (m *machine) wakeAt(when time.Time) {
	if m.wake.IsZero() || when.Before(m.wake) {
		m.wake = when
	}
}

// due reports whether a time has come, and requests a tick if it has not.
func (m *machine) due(when time.Time) bool {
	if m.now.Before(when) {
		m.wakeAt(when)
		return false
	}
	return true
}

func (m *machine) raise(code string, severity condition.Severity, format string, args ...any) {
	m.do(raise{code, severity, fmt.Sprintf(format, args...)})
}

func (m *machine) clear(code string) { m.do(clearCondition{code}) }

func (m *machine) warn(message string, args ...any) {
	m.do(logLine{level: slog.LevelWarn, message: message, args: args})
}

func (m *machine) info(message string, args ...any) {
	m.do(logLine{level: slog.LevelInfo, message: message, args: args})
}

// annotate stores the note of an epoch, for the next agent, in the keeper.
func (m *machine) annotate(p *process) {
	if p.alive() {
		m.do(storeNote{p.ID, p.Number, noteOf(p)})
	}
}

// notice is an event of an epoch: a sentence for people, and a line of the log.
type notice struct {
	kind     string // of condition
	epoch    int
	sentence string
	fields   map[string]string // of the event
	level    slog.Level
	message  string
	args     []any // fields of the line, besides epoch and kind
}

// publish announces an event on the board and in the log.
func (m *machine) publish(n notice) {
	m.do(publish{condition.Event{Kind: n.kind, Epoch: &n.epoch, Sentence: n.sentence,
		Fields: maps.Clone(n.fields)}})
	m.do(logLine{level: n.level, message: n.message,
		args: append([]any{"epoch", n.epoch, "event", n.kind}, n.args...)})
}

// finish ends Run.
func (m *machine) finish(outcome error) {
	m.status, m.outcome = finished, outcome
	m.removeUnreplaced()
	m.do(cancelJob{stopJob})
}
