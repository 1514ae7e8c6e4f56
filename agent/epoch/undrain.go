package epoch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"outrider.org/outrider/agent/condition"
)

// reasonUndrain is the reason of an epoch that is started for Undrain.
const reasonUndrain = "undrain"

// errDrainedAgain is the error of an Undrain that a later Drain ended.
var errDrainedAgain = errors.New("a later request to drain ended the undrain")

// Undrain restores service after Drain and returns when an epoch that takes connections is live.
// Envoy cannot take a drain back, so Undrain starts an epoch of the configuration in force; any
// other epoch that becomes live first does as well. Until then the drained epoch drains on, and its
// listeners may close meanwhile: the new epoch binds its own. An Undrain that fails changes
// nothing. If no drain was requested the result is Unchanged. onWait, if not nil, is called as
// Request.OnWait is. If ctx ends the undrain continues.
func (s *Supervisor) Undrain(ctx context.Context, onWait func(until time.Time, why string)) (Result, error) {
	release, err := s.lockTelling(ctx) // a Drain under way comes first
	if err != nil {
		return Result{}, err
	}
	c := &caller{request: Request{Reason: reasonUndrain, OnWait: onWait}, answer: make(chan answer, 1)}
	err = s.call(ctx, func() { s.requestUndrain(c) })
	release()
	if err != nil {
		return Result{}, err
	}
	return s.outcomeOf(ctx, c)
}

// requestUndrain answers an Undrain, or makes it wait for the next epoch that becomes live.
func (s *Supervisor) requestUndrain(c *caller) {
	a := answer{}
	switch live := s.live(); {
	case s.stop != nil:
		a.err = s.refusal(-1, ErrStopping)
	case live == nil:
		a.err = ErrNotLive
	case !s.drained:
		a.result = Result{Epoch: live.Number, Previous: live.Number, Mode: Unchanged}
	case s.good == nil || s.good.frozen != nil:
		a.err = s.refusal(-1, fmt.Errorf("epoch %d: %w", live.Number, errFrozen))
	default:
		s.undraining = append(s.undraining, c)
		return
	}
	s.reply([]*caller{c}, a)
}

// undrained ends a drain: an epoch that was not told to drain is live.
func (s *Supervisor) undrained(p *process, result Result) {
	s.drained = false
	s.event(condition.KindUndrained, p, fmt.Sprintf("epoch %d takes new connections: the drain is taken back", p.Number), nil)
	s.reply(s.undraining, answer{result: result})
	s.undraining = nil
}

// refuseUndrain answers all who wait for an undrain that failed.
func (s *Supervisor) refuseUndrain(err error) {
	s.reply(s.undraining, answer{err: err})
	s.undraining = nil
}
