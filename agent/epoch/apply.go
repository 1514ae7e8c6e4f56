package epoch

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// caller is one who waits in Apply.
type caller struct {
	request Request
	answer  chan answer // holds one
	told    string      // what OnWait was told last
}

type answer struct {
	result Result
	err    error
}

// pending is the request that waits for its turn: the newest spec, with all who wait for it.
type pending struct {
	spec    *Spec
	reason  string
	callers []*caller
}

// ifChanged is whether all callers are content with a live epoch of the same hash.
func (p *pending) ifChanged() bool {
	for _, c := range p.callers {
		if !c.request.IfChanged {
			return false
		}
	}
	return true
}

// Apply asks for an epoch that runs the request's spec and returns when it is live, or why it is not (*Refused, unless
// the supervisor or ctx has ended). Requests that come while another is under way are merged: the newest spec wins, and all
// callers get the outcome of the one that ran. A caller whose ctx ends takes nothing back.
func (s *Supervisor) Apply(ctx context.Context, request Request) (Result, error) {
	return s.Ask(request)(ctx)
}

// Ask is Apply in two steps, for a caller that must not wait: it returns at once, and what it returns waits for the outcome.
// The order of the calls of Ask is the order of the requests.
func (s *Supervisor) Ask(request Request) (wait func(context.Context) (Result, error)) {
	c := &caller{request: request, answer: make(chan answer, 1)}
	s.mu.Lock()
	s.asked = append(s.asked, c)
	s.mu.Unlock()
	select {
	case s.asking <- struct{}{}:
	default: // the owner is about to look
	}
	return func(ctx context.Context) (Result, error) { return s.outcomeOf(ctx, c) }
}

// outcomeOf waits for the answer to a caller.
func (s *Supervisor) outcomeOf(ctx context.Context, c *caller) (Result, error) {
	select {
	case a := <-c.answer:
		return a.result, a.err
	case <-ctx.Done():
		return Result{}, ctx.Err()
	case <-s.ended:
	}
	select {
	case a := <-c.answer: // it was answered, then Run ended
		return a.result, a.err
	default:
		return Result{}, ErrEnded
	}
}

// takeRequests takes in what was asked for, in order.
func (s *Supervisor) takeRequests() {
	s.mu.Lock()
	asked := s.asked
	s.asked = nil
	s.mu.Unlock()
	for _, c := range asked {
		s.request(c)
	}
}

// request takes a new request in.
func (s *Supervisor) request(c *caller) {
	request := c.request
	if s.stop != nil {
		s.reply([]*caller{c}, answer{err: s.refusal(-1, ErrStopping)})
		return
	}
	a := s.attempt
	if a != nil && s.pending == nil && !a.adopted && a.spec.frozen == nil && request.IfChanged && a.spec.Hash == request.Spec.Hash {
		a.callers = append(a.callers, c) // what it wants is being tried
		return
	}
	if s.pending == nil {
		s.pending = &pending{}
	}
	s.pending.spec, s.pending.reason = request.Spec, request.Reason
	s.pending.callers = append(s.pending.callers, c)
}

// answerUnchanged answers a request for what is live already.
func (s *Supervisor) answerUnchanged() {
	live := s.live()
	if s.pending == nil || s.attempt != nil || live == nil || live.Hash != s.pending.spec.Hash {
		return
	}
	if live.spec.frozen != nil || live.spec.Command == nil { // adopted: now it can be started again in any way
		s.respecify(live, s.pending.spec)
	}
	if !s.pending.ifChanged() {
		return
	}
	result := Result{Epoch: live.Number, Previous: live.Number, Mode: Unchanged}
	s.reply(s.pending.callers, answer{result: result})
	s.pending = nil
}

// reply answers callers once readers see what the answer speaks of.
func (s *Supervisor) reply(callers []*caller, a answer) {
	for _, c := range callers {
		s.replies = append(s.replies, func() { c.answer <- a })
	}
}

// tellWaiting tells the callers that wait what for and until when.
func (s *Supervisor) tellWaiting() {
	waiting := slices.Clone(s.undraining)
	if s.pending != nil {
		waiting = append(waiting, s.pending.callers...)
	}
	s.awaits = ""
	if len(waiting) == 0 {
		return
	}
	until, why := time.Time{}, "waiting for the keeper"
	if a := s.attempt; a != nil {
		until, why = a.liveBy, fmt.Sprintf("starting epoch %d", a.process.Number)
	} else {
		for _, old := range s.processes {
			if old.Phase == Live {
				continue
			}
			why = waitsFor(old)
			s.logWait(old)
			if old.Ends.After(until) {
				until = old.Ends
			}
		}
	}
	s.awaits = why
	text := why + until.String()
	for _, c := range waiting {
		if c.told != text && c.request.OnWait != nil {
			c.told = text
			c.request.OnWait(until, why)
		}
	}
}

// refusal is the error of a request for epoch number (-1 = none was tried yet).
func (s *Supervisor) refusal(number int, cause error, more ...string) *Refused {
	r := &Refused{Number: number, Remaining: -1, Reasons: append([]string{cause.Error()}, more...), cause: cause}
	if live := s.live(); live != nil {
		r.Remaining = live.Number
	}
	if number < 0 {
		r.Number = r.Remaining + 1
	}
	return r
}

// refusePending refuses the request that waits.
func (s *Supervisor) refusePending(cause error) {
	if s.pending != nil {
		s.reply(s.pending.callers, answer{err: s.refusal(-1, cause)})
		s.pending = nil
	}
}
