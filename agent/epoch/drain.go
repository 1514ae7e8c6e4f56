package epoch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"outrider.org/outrider/agent/condition"
)

// reasonUndrain is the reason that the record of an epoch states if Undrain started it.
const reasonUndrain = "undrain"

var (
	// errDrainedAgain is the error that Undrain returns if a later Drain supersedes it.
	errDrainedAgain = errors.New("a later request to drain ended the undrain")
	// errUnconfirmed is the error of a drain request that failed although Envoy may still execute
	// it.
	errUnconfirmed = errors.New("it is unknown whether Envoy drains")
)

// draining is the state of a requested drain, and of the calls of Drain and Undrain that wait.
type draining struct {
	wanted  bool   // a drain was requested, and not undone later
	request string // process to which a drain request is being sent; "": none
	number  int    // epoch number of the process in request
	before  bool   // the epoch was already draining when the drain request was sent
	// when the drain request is sent again to the live epoch, which has not confirmed it
	again    time.Time
	failed   string // process whose failed drain request was logged; repetitions are not
	calls    []call // calls of Drain that wait for the drain request that is being sent
	queued   []call // calls of Drain that wait for the next drain request
	delayed  []call // calls of Undrain that wait until the current drain request has ended
	undrains []call // calls of Undrain that wait for the next epoch to become live
}

func (d draining) clone() draining {
	d.calls, d.queued = slices.Clone(d.calls), slices.Clone(d.queued)
	d.delayed, d.undrains = slices.Clone(d.delayed), slices.Clone(d.undrains)
	return d
}

// drainRequested is the event of a call of Drain.
type drainRequested struct{ call call }

func (e drainRequested) apply(m *machine) { m.drain.queued = append(m.drain.queued, e.call) }

// undrainRequested is the event of a call of Undrain.
type undrainRequested struct{ call call }

func (e undrainRequested) apply(m *machine) { m.drain.delayed = append(m.drain.delayed, e.call) }

// reconcileDrain requests a drain from the live epoch if necessary. One request runs at a time.
func (m *machine) reconcileDrain() {
	d, live := &m.drain, m.live()
	if d.request != "" {
		return
	}
	delayed := d.delayed
	d.delayed = nil
	for _, c := range delayed {
		m.requestUndrain(c)
	}
	repeat := live != nil && d.wanted && live.DrainRequested && live.ListenersCloseAt.IsZero() &&
		m.stop == nil
	switch {
	case len(d.queued) > 0 && live == nil:
		m.reply(d.queued, answer{err: errNotLive})
		d.queued = nil
	case len(d.queued) > 0 || repeat && m.due(d.again):
		d.request, d.number, d.before = live.ID, live.Number, live.DrainRequested
		d.calls, d.queued = d.queued, nil
		m.do(requestDrain{live.ID, live.AdminAddress})
	}
}

// drainAnswered is the event of a completed drain request.
type drainAnswered struct {
	id  string
	err error
}

func (e drainAnswered) apply(m *machine) {
	d := &m.drain
	accepted := e.err == nil || errors.Is(e.err, errUnconfirmed) || m.handsOver(e.id)
	switch {
	case len(d.calls) == 0: // the request was a repetition, for which no caller waits
		m.drainRepeated(e)
	case accepted:
		m.requireDrain(e)
	case d.before:
		m.reply(d.calls, answer{err: fmt.Errorf("epoch %d: %w", d.number, e.err)})
	// Envoy may have executed the request in part, or may execute it when it responds again
	default:
		m.do(restoreHealth{e.id, m.adminOf(e.id), e.err})
		return
	}
	d.request, d.calls = "", nil
}

// healthRestored is the event of a failed drain request whose effect on Envoy was undone.
type healthRestored struct{ err error }

func (e healthRestored) apply(m *machine) {
	d := &m.drain
	m.reply(d.calls, answer{err: fmt.Errorf("epoch %d: %w", d.number, e.err)})
	d.request, d.calls = "", nil
}

// drainRepeated handles the result of a repeated drain request, for which no caller waits.
func (m *machine) drainRepeated(e drainAnswered) {
	d, p := &m.drain, m.find(e.id)
	switch {
	case p == nil || !p.State.Serves():
	case e.err == nil:
		m.confirmDrain(p)
	default:
		d.again = m.now.Add(probeInterval)
		if d.failed != p.ID {
			d.failed = p.ID
			m.warn("cannot drain epoch; trying again", "epoch", p.Number, "error", e.err)
		}
	}
}

// handsOver reports whether another epoch than the one with the ID was serves, or is about to
// replace that one. The drain is then requested from the other epoch.
func (m *machine) handsOver(was string) bool {
	now := m.live()
	return now != nil && (now.ID != was || now.AdminLost || now.State == StateHandingOver)
}

func (m *machine) adminOf(id string) string {
	if p := m.find(id); p != nil {
		return p.AdminAddress
	}
	return ""
}

// requireDrain accepts the drain, which then also applies to later epochs. If Envoy has not
// confirmed the request, the request is repeated.
func (m *machine) requireDrain(e drainAnswered) {
	d := &m.drain
	d.wanted = true
	m.refuseUndrain(errDrainedAgain)
	live := m.live()
	switch {
	case live != nil && live.ID == e.id && e.err == nil:
		live.DrainRequested = true
		m.confirmDrain(live)
	case live != nil:
		m.drainAgain(live)
	}
	n := notice{kind: condition.KindDraining, epoch: d.number, message: "epoch drains on request",
		sentence: fmt.Sprintf("epoch %d drains: its listeners close at the end of its drain time",
			d.number)}
	if e.err != nil {
		n.message, n.args = "epoch has not confirmed that it drains; trying again",
			[]any{"error", e.err}
		n.sentence = fmt.Sprintf("epoch %d has not confirmed that it drains; the request is "+
			"repeated until it, or the epoch that replaces it, does (%v)", d.number, e.err)
	}
	m.publish(n)
	m.reply(d.calls, answer{})
}

// confirmDrain records when the listeners of a draining epoch close. Envoy's drain time starts with
// the first drain request; later requests do not extend it.
func (m *machine) confirmDrain(p *process) {
	if p.DrainRequested && p.ListenersCloseAt.IsZero() {
		p.ListenersCloseAt = m.now.Add(p.spec.DrainTime)
	}
	m.annotate(p)
}

// drainAgain makes the supervisor send the drain request to an epoch again, and repeat it until the
// epoch confirms it.
func (m *machine) drainAgain(p *process) {
	p.DrainRequested, m.drain.again = true, m.now
	m.annotate(p)
}

// requestUndrain completes an Undrain immediately if no new epoch is needed. Otherwise the call
// waits for the next epoch to become live.
func (m *machine) requestUndrain(c call) {
	a := answer{}
	switch live := m.live(); {
	case m.stop != nil:
		a.err = m.refusal(-1, ErrStopping)
	case live == nil:
		a.err = errNotLive
	case !m.drain.wanted:
		a.result = Result{Epoch: live.Number, Previous: live.Number, Mode: NoNewEpoch}
	case m.lastGood == nil || m.lastGood.adopted != nil:
		a.err = m.refusal(-1, fmt.Errorf("epoch %d: %w", live.Number, errAdoptedSpec))
	default:
		m.drain.undrains = append(m.drain.undrains, c)
		return
	}
	m.reply([]call{c}, a)
}

// undrained ends the requested drain, because an epoch that does not drain is live.
func (m *machine) undrained(p *process, result Result) {
	m.drain.wanted = false
	m.publish(notice{kind: condition.KindUndrained, epoch: p.Number, message: "drain reverted",
		sentence: fmt.Sprintf("epoch %d takes new connections: the drain is reverted", p.Number)})
	m.reply(m.drain.undrains, answer{result: result})
	m.drain.undrains = nil
}

// refuseUndrain returns an error to all callers of Undrain.
func (m *machine) refuseUndrain(err error) {
	m.reply(m.drain.undrains, answer{err: err})
	m.drain.undrains = nil
}
