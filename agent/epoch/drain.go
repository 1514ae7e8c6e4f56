package epoch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"outrider.org/outrider/agent/condition"
)

// reasonUndrain is the reason of an epoch that is started for Undrain.
const reasonUndrain = "undrain"

var (
	// errDrainedAgain is the error of an Undrain that a later Drain ended.
	errDrainedAgain = errors.New("a later request to drain ended the undrain")
	// errUnconfirmed is the error of a drain that Envoy may carry out later.
	errUnconfirmed = errors.New("it is not known whether Envoy drains")
)

// draining is the standing request to drain, and the calls of Drain and Undrain.
type draining struct {
	wanted   bool      // a drain was requested, and no Undrain has succeeded since
	request  string    // process that is being requested to drain; "": none
	number   int       // of that process
	before   bool      // the epoch drained already
	again    time.Time // the live epoch is requested again then, until it confirms
	failed   string    // process for which a failed request was logged
	calls    []call    // of Drain: they wait for the request
	queued   []call    // of Drain: they wait for the next request
	delayed  []call    // of Undrain: they wait for the end of the request
	undrains []call    // of Undrain: they wait for the next epoch that becomes live
}

func (d draining) clone() draining {
	d.calls, d.queued = slices.Clone(d.calls), slices.Clone(d.queued)
	d.delayed, d.undrains = slices.Clone(d.delayed), slices.Clone(d.undrains)
	return d
}

// drainRequested is the event of Drain.
type drainRequested struct{ call call }

func (e drainRequested) apply(m *machine) { m.drain.queued = append(m.drain.queued, e.call) }

// undrainRequested is the event of Undrain.
type undrainRequested struct{ call call }

func (e undrainRequested) apply(m *machine) { m.drain.delayed = append(m.drain.delayed, e.call) }

// reconcileDrain requests the live epoch to drain if there is a reason. One request runs at a time.
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
	repeat := live != nil && d.wanted && live.Drained && live.DrainEnds.IsZero() && m.stop == nil
	switch {
	case len(d.queued) > 0 && live == nil:
		m.reply(d.queued, answer{err: ErrNotLive})
		d.queued = nil
	case len(d.queued) > 0 || repeat && m.due(d.again):
		d.request, d.number, d.before = live.ID, live.Number, live.Drained
		d.calls, d.queued = d.queued, nil
		m.do(requestDrain{live.ID, live.AdminAddress})
	}
}

// drainAnswered is the event of a request to drain that has ended.
type drainAnswered struct {
	id  string
	err error
}

func (e drainAnswered) apply(m *machine) {
	d := &m.drain
	accepted := e.err == nil || errors.Is(e.err, errUnconfirmed) || m.handsOver(e.id)
	switch {
	case len(d.calls) == 0: // the request was repeated
		m.drainRepeated(e)
	case accepted:
		m.requireDrain(e)
	case d.before:
		m.reply(d.calls, answer{err: fmt.Errorf("epoch %d: %w", d.number, e.err)})
	default: // Envoy may have carried out a part, or does so when it answers again
		m.do(restoreHealth{e.id, m.adminOf(e.id), e.err})
		return
	}
	d.request, d.calls = "", nil
}

// healthRestored is the event of a refused drain that was undone.
type healthRestored struct{ err error }

func (e healthRestored) apply(m *machine) {
	d := &m.drain
	m.reply(d.calls, answer{err: fmt.Errorf("epoch %d: %w", d.number, e.err)})
	d.request, d.calls = "", nil
}

// drainRepeated takes in the outcome of a request that nobody waits for.
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

// handsOver reports whether another epoch than was serves, or is about to. That one will be
// requested to drain.
func (m *machine) handsOver(was string) bool {
	now := m.live()
	return now != nil && (now.ID != was || now.AdminLost || now.State == HandingOver)
}

func (m *machine) adminOf(id string) string {
	if p := m.find(id); p != nil {
		return p.AdminAddress
	}
	return ""
}

// requireDrain makes the request to drain permanent: Envoy has confirmed it, or it is repeated.
func (m *machine) requireDrain(e drainAnswered) {
	d := &m.drain
	d.wanted = true
	m.refuseUndrain(errDrainedAgain)
	live := m.live()
	switch {
	case live != nil && live.ID == e.id && e.err == nil:
		live.Drained = true
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

// confirmDrain records when the listeners of an epoch close that drains. Envoy counts from the
// first request; nothing ends that.
func (m *machine) confirmDrain(p *process) {
	if p.Drained && p.DrainEnds.IsZero() {
		p.DrainEnds = m.now.Add(p.spec.Drain)
	}
	m.annotate(p)
}

// drainAgain repeats the standing request to drain for another epoch.
func (m *machine) drainAgain(p *process) {
	p.Drained, m.drain.again = true, m.now
	m.annotate(p)
}

// requestUndrain answers an Undrain, or makes it wait for the next epoch that becomes live.
func (m *machine) requestUndrain(c call) {
	a := answer{}
	switch live := m.live(); {
	case m.stop != nil:
		a.err = m.refusal(-1, ErrStopping)
	case live == nil:
		a.err = ErrNotLive
	case !m.drain.wanted:
		a.result = Result{Epoch: live.Number, Previous: live.Number, Mode: Unchanged}
	case m.lastGood == nil || m.lastGood.adopted != nil:
		a.err = m.refusal(-1, fmt.Errorf("epoch %d: %w", live.Number, errAdoptedSpec))
	default:
		m.drain.undrains = append(m.drain.undrains, c)
		return
	}
	m.reply([]call{c}, a)
}

// undrained ends the standing drain: an epoch that was not requested to drain is live.
func (m *machine) undrained(p *process, result Result) {
	m.drain.wanted = false
	m.publish(notice{kind: condition.KindUndrained, epoch: p.Number, message: "drain reverted",
		sentence: fmt.Sprintf("epoch %d takes new connections: the drain is reverted", p.Number)})
	m.reply(m.drain.undrains, answer{result: result})
	m.drain.undrains = nil
}

// refuseUndrain answers all who wait for an undrain that failed.
func (m *machine) refuseUndrain(err error) {
	m.reply(m.drain.undrains, answer{err: err})
	m.drain.undrains = nil
}
