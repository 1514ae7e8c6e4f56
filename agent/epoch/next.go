package epoch

import (
	"fmt"
	"log/slog"
	"maps"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// event is an input of the state machine: a call, a message of the keeper, the result of an action,
// or a tick.
type event struct {
	at      time.Time
	trigger trigger
}

// trigger is the content of an event. Its method apply changes the state and adds actions.
type trigger interface{ apply(m *machine) }

// action is an output of the state machine. The executor calls run after the transition. run does
// not block; if the action has a result, the result is posted as an event.
type action interface{ run(x *executor) }

// tick is the event of the time for which the state requested a wake-up (state.wake).
type tick struct{}

func (tick) apply(*machine) {}

// configured is the event of a call of Supervisor.Configure.
type configured struct{ config config.Envoy }

func (e configured) apply(m *machine) { m.config = e.config }

// machine has the state and the collected actions of one transition.
type machine struct {
	state
	now     time.Time
	actions []action
}

// next returns the state after an event, and the actions to carry out. It is a pure function: it
// reads no clock, does not block and does not modify the state was.
func next(was state, e event) (state, []action) {
	m := &machine{state: was.clone(), now: e.at}
	e.trigger.apply(m)
	m.reconcile()
	return m.state, m.actions
}

// reconcile makes the transitions that depend only on the state and the time, and determines the
// time of the next tick.
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

// publishState copies parts of the supervisor's state, which readers need, to the record of the
// serving epoch.
func (m *machine) publishState(p *process) {
	p.NextEpochWaitReason, p.ListenersMaybeClosed = "", false
	if !p.State.Serves() {
		return
	}
	p.NextEpochWaitReason, p.ListenersMaybeClosed = m.awaits, !m.replaceAt.IsZero()
	switch {
	case m.stop != nil:
		p.State = StateStopping
	case m.attempt != nil || m.probe.examining:
		p.State = StateHandingOver
	default:
		p.State = StateLive
	}
}

// do adds an action to carry out.
func (m *machine) do(a action) { m.actions = append(m.actions, a) }

// wakeAt requests a tick at a time.
func (m *machine) wakeAt(when time.Time) {
	if m.wake.IsZero() || when.Before(m.wake) {
		m.wake = when
	}
}

// due reports whether a time has been reached. If not, it requests a tick at that time.
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

// annotate stores the note of an epoch in the keeper, for the next agent.
func (m *machine) annotate(p *process) {
	if p.alive() {
		m.do(storeNote{p.ID, p.Number, noteOf(p)})
	}
}

// notice is something that happened to an epoch, with a sentence for people and a log line.
type notice struct {
	kind     string // kind of the published event
	epoch    int
	sentence string
	fields   map[string]string // fields of the published event
	level    slog.Level
	message  string
	args     []any // fields of the log line, in addition to epoch and kind
}

// publish publishes a notice as an event, and writes it to the log.
func (m *machine) publish(n notice) {
	m.do(publish{condition.Event{Kind: n.kind, Epoch: &n.epoch, Sentence: n.sentence,
		Fields: maps.Clone(n.fields)}})
	m.do(logLine{level: n.level, message: n.message,
		args: append([]any{"epoch", n.epoch, "event", n.kind}, n.args...)})
}

// finish ends Supervisor.Run, which returns outcome.
func (m *machine) finish(outcome error) {
	m.status, m.outcome = finished, outcome
	m.removeUnreplaced()
	m.do(cancelJob{stopJob})
}
