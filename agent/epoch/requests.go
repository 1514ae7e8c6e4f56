package epoch

import (
	"fmt"
	"slices"
	"time"
)

// call identifies a caller that waits for a result. The executor has the channel for the result.
type call struct {
	id        int
	ifChanged bool
	announced string // last reason for waiting that was reported to the caller
}

// answer is the result of a call.
type answer struct {
	result  Result
	err     error
	differs bool // result of updateSpec: the live epoch must be adjusted
}

// pending is the request that waits to be started. It has the newest spec and the callers of all
// requests that were merged into it.
type pending struct {
	spec   *Spec
	reason string
	calls  []call
	// draining epochs that may be killed instead of waiting for them, from all merged requests
	abort []int
}

// requested is the event of a call of Apply or Submit.
type requested struct {
	call   call
	spec   *Spec
	reason string
	abort  []int
}

func (e requested) apply(m *machine) {
	a := m.attempt
	switch {
	case m.stop != nil:
		m.reply([]call{e.call}, answer{err: m.refusal(-1, ErrStopping)})
	case a != nil && m.pending == nil && !a.adopted && a.spec.adopted == nil &&
		e.call.ifChanged && a.spec.Digest == e.spec.Digest:
		// the current attempt already starts an epoch with this spec
		a.calls = append(a.calls, e.call)
	case m.pending == nil:
		m.pending = &pending{spec: e.spec, reason: e.reason, calls: []call{e.call}, abort: e.abort}
	default:
		m.pending.spec, m.pending.reason = e.spec, e.reason
		m.pending.calls = append(m.pending.calls, e.call)
		m.pending.abort = slices.Concat(m.pending.abort, e.abort)
	}
}

// answerUnchanged completes the pending request if an epoch with its spec is live already.
func (m *machine) answerUnchanged() {
	live := m.live()
	if m.pending == nil || m.attempt != nil || live == nil ||
		live.SpecDigest != m.pending.spec.Digest {
		return
	}
	if live.spec.adopted != nil || live.spec.Command == nil {
		// the adopted spec is incomplete; with the complete one the epoch can be started again
		// under any number
		m.respecify(live, m.pending.spec)
	}
	if slices.ContainsFunc(m.pending.calls, func(c call) bool { return !c.ifChanged }) {
		return
	}
	result := Result{Epoch: live.Number, Previous: live.Number, Mode: NoNewEpoch}
	m.reply(m.pending.calls, answer{result: result})
	m.pending = nil
}

func (m *machine) reply(calls []call, a answer) {
	for _, c := range calls {
		m.do(reply{c.id, a})
	}
}

// refusal returns the error of a request for epoch number (-1: no epoch was tried).
func (m *machine) refusal(number int, cause error, more ...string) *AttemptError {
	r := &AttemptError{Number: number, Remaining: -1,
		Reasons: append([]string{cause.Error()}, more...),
		cause:   cause}
	if live := m.live(); live != nil {
		r.Remaining = live.Number
	}
	if number < 0 {
		r.Number = r.Remaining + 1
	}
	return r
}

// refusePending refuses the waiting request.
func (m *machine) refusePending(cause error) {
	if m.pending != nil {
		m.reply(m.pending.calls, answer{err: m.refusal(-1, cause)})
		m.pending = nil
	}
}

// announceWaiting reports to waiting callers why they wait, and until when at the latest.
func (m *machine) announceWaiting() {
	m.awaits = ""
	if m.pending == nil && len(m.drain.undrains) == 0 {
		return
	}
	until, why := time.Time{}, "waiting for the keeper"
	if a := m.attempt; a != nil {
		until, why = a.liveBy, a.doing()
	} else {
		for _, old := range m.older() {
			why = waitsFor(old)
			m.logWait(old)
			if old.LatestDrainEnd.After(until) {
				until = old.LatestDrainEnd
			}
		}
	}
	m.awaits = why
	text := why + until.String()
	announce := func(calls []call) {
		for i, c := range calls {
			if c.announced != text {
				calls[i].announced = text
				m.do(announceWait{c.id, until, why})
			}
		}
	}
	announce(m.drain.undrains)
	if m.pending != nil {
		announce(m.pending.calls)
	}
}

// doing describes the progress of an attempt, as text for people.
func (a *attempt) doing() string {
	format := "starting epoch %d"
	switch a.stage {
	case preparing:
		format = "preparing epoch %d"
	case launching:
		format = "waiting for the keeper to start epoch %d"
	case clearing:
		format = "waiting for aborted epochs to exit before epoch %d"
	case killing:
		format = "waiting for epoch %d, which failed, to exit"
	case polling:
	}
	return fmt.Sprintf(format, a.process.Number)
}

// waitsFor describes the older epoch whose end a request awaits, as text for people.
func waitsFor(old *process) string {
	why := fmt.Sprintf("waiting for epoch %d to finish draining", old.Number)
	switch {
	case old.left == 1:
		why += ", 1 client connection left"
	case old.left > 1:
		why += fmt.Sprintf(", %d client connections left", old.left)
	}
	return why
}

// logWait logs, once for each older epoch, that a request waits for that epoch to exit.
func (m *machine) logWait(old *process) {
	// counted is false until the connections of old were counted: if there are none, the request
	// does not wait
	counted := old.busy || m.endedByLive() != old
	if old.logged || !counted {
		return
	}
	old.logged = true
	m.info("waiting for an older epoch to finish draining", "epoch", old.Number,
		"connections", old.left, "until", old.LatestDrainEnd.Format(time.TimeOnly))
}

// abortRequested is the event of a call of Abort.
type abortRequested struct {
	call   call
	number int
}

func (e abortRequested) apply(m *machine) {
	err := fmt.Errorf("epoch %d: %w", e.number, ErrNoEpoch)
	if a := m.attempt; a != nil && a.process.Number == e.number && !a.adopted {
		err = nil
		m.abort(errAborted)
	} else {
		for _, p := range m.processes {
			if p.Number == e.number {
				err = nil
				m.kill(p, errAborted.Error())
			}
		}
	}
	m.reply([]call{e.call}, answer{err: err})
}

// abortDraining kills those draining epochs whose number is in numbers, and reports whether there
// are any.
func (m *machine) abortDraining(numbers []int) bool {
	found := false
	for _, p := range m.older() {
		if slices.Contains(numbers, p.Number) {
			if found = true; p.killed.IsZero() {
				m.kill(p, errAborted.Error())
			}
		}
	}
	return found
}

// renewed is the event of a call of updateSpec.
type renewed struct {
	call call
	spec *Spec
}

func (e renewed) apply(m *machine) {
	a := answer{}
	if m.lastGood != nil && m.lastGood.Digest == e.spec.Digest {
		m.lastGood = e.spec
	}
	if m.lastTried != nil && m.lastTried.Digest == e.spec.Digest {
		m.lastTried = e.spec
	}
	if live := m.live(); live != nil && live.SpecDigest == e.spec.Digest {
		m.respecify(live, e.spec)
		var command Command
		command, a.err = commandOf(e.spec, live.launch())
		a.differs = a.err == nil && !slices.Equal(command.Args, live.command.Args)
	}
	m.reply([]call{e.call}, a)
}

// respecify replaces the live epoch's spec by a newer one of equal digest.
func (m *machine) respecify(live *process, spec *Spec) {
	live.spec, m.lastGood, m.lastGoodFailed = spec, spec, false
	// the digest of a custom bootstrap may not depend on the namespace
	if live.MeshNamespace != spec.Namespace {
		live.MeshNamespace = spec.Namespace
		m.annotate(live)
	}
}

// tuned is the event of a call of recordAppliedLogLevels.
type tuned struct {
	call call
	id   string
	spec *Spec
}

func (e tuned) apply(m *machine) {
	a := answer{}
	if p := m.find(e.id); p != nil && p.SpecDigest == e.spec.Digest {
		var command Command
		if command, a.err = commandOf(e.spec, p.launch()); a.err == nil {
			p.command = command
			m.annotate(p)
		}
	}
	m.reply([]call{e.call}, a)
}

func commandOf(spec *Spec, l LaunchInput) (Command, error) {
	command, err := spec.Command(l)
	if err != nil {
		err = fmt.Errorf("build the command line of epoch %d: %w", l.Number, err)
	}
	return command, err
}
