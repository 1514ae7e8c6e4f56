package epoch

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// Drain makes the live epoch fail its health checks and close its listeners at the end of its drain time; it aborts
// nothing in flight. It is a standing request: a later epoch drains as well, until Undrain. It also stands where Envoy may
// have accepted it without an answer, or is about to be replaced: then the request is repeated until Envoy confirms it.
// A Drain that fails changes nothing. One that succeeds ends an Undrain under way.
func (s *Supervisor) Drain(ctx context.Context) error {
	release, err := s.lockTelling(ctx)
	if err != nil {
		return err
	}
	defer release()
	var live *process
	var running context.Context
	before := false
	if err := s.call(ctx, func() {
		if live, running = s.live(), s.running; live != nil {
			before = live.Drained
		}
	}); err != nil {
		return err
	}
	if live == nil {
		return ErrNotLive
	}
	// From here on the caller may leave: what Envoy was told must be recorded.
	err = tellDrained(running, live.admin)
	stands, seen := false, make(chan struct{})
	if called := s.call(context.WithoutCancel(ctx), func() {
		if stands = err == nil || errors.Is(err, errUnconfirmed) || s.handsOver(live); stands {
			s.requireDrain(live, err)
		}
		s.replies = append(s.replies, func() { close(seen) })
	}); called != nil {
		return called
	}
	<-seen // by readers
	if stands {
		return nil
	}
	if !before { // it may have done a part of it, or does it when it answers again
		taking, cancel := context.WithTimeout(context.WithoutCancel(running), probeTimeout)
		defer cancel()
		_ = live.admin.OKHealthcheck(taking)
	}
	return fmt.Errorf("epoch %d: %w", live.Number, err)
}

// errUnconfirmed is about a drain that Envoy may carry out later, as it was busy when it was told: nothing takes that back.
var errUnconfirmed = errors.New("it is not known whether Envoy drains")

// lockTelling waits until no other request to drain is being sent to Envoy. The caller must call release.
func (s *Supervisor) lockTelling(ctx context.Context) (release func(), err error) {
	select {
	case s.telling <- struct{}{}:
		return func() { <-s.telling }, nil
	case <-s.ended:
		return nil, ErrEnded
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// handsOver reports whether another epoch serves in place of one, or is about to: that one will be told to drain.
func (s *Supervisor) handsOver(was *process) bool {
	now := s.live()
	return now != nil && (now != was || now.AdminLost || s.attempt != nil || s.examining)
}

// requireDrain records the standing request after an epoch was told; err is why that epoch has not confirmed it.
func (s *Supervisor) requireDrain(told *process, err error) {
	s.drained = true
	s.refuseUndrain(errDrainedAgain)
	switch now := s.live(); {
	case now == told && err == nil:
		now.Drained = true
		now.drains()
		s.annotate(now)
	case now != nil:
		s.drainAgain(now)
	}
	sentence := fmt.Sprintf("epoch %d drains: its listeners close at the end of its drain time", told.Number)
	if err != nil {
		sentence = fmt.Sprintf("epoch %d has not confirmed that it drains; the request is repeated until it, or the epoch "+
			"that replaces it, does (%v)", told.Number, err)
	}
	s.event(condition.KindDraining, told, sentence, nil)
}

// drains notes when the listeners close of an epoch that has confirmed that it drains. Envoy counts from the first request;
// nothing ends that.
func (p *process) drains() {
	if p.Drained && p.DrainEnds.IsZero() {
		p.DrainEnds = time.Now().Add(p.spec.Drain)
	}
}

// tellDrained tells an epoch to drain, within tellTimeout.
func tellDrained(ctx context.Context, admin Admin) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	if err := admin.FailHealthcheck(ctx); err != nil {
		return fmt.Errorf("set the health check: %w", err)
	}
	switch err := admin.DrainListeners(ctx, true); {
	case hangs(err):
		return fmt.Errorf("%w: drain the listeners: %w", errUnconfirmed, err)
	case err != nil:
		return fmt.Errorf("drain the listeners: %w", err)
	}
	return nil
}

// drainAgain makes an epoch follow the standing request to drain, and repeats that until it does.
func (s *Supervisor) drainAgain(p *process) {
	p.Drained = true
	s.annotate(p)
	s.help(func(ctx context.Context) {
		for try := 1; ; try++ {
			settled, err := s.tellAgain(ctx, p)
			if settled {
				return
			}
			if try == 1 {
				s.log.Warn("cannot tell epoch to drain; trying again", "epoch", p.Number, "error", err)
			}
			if !sleep(ctx, probeInterval) {
				return
			}
		}
	})
}

// tellAgain tells an epoch once to drain. It is settled when the epoch has confirmed it, or need not be told any more. It
// runs in a helper.
func (s *Supervisor) tellAgain(ctx context.Context, p *process) (settled bool, err error) {
	release, err := s.lockTelling(ctx)
	if err != nil {
		return true, nil //nolint:nilerr // Run has ended
	}
	defer release()
	over := false
	if err := s.call(ctx, func() { over = p.Phase != Live || s.stop != nil }); err != nil || over {
		return true, nil //nolint:nilerr // Run has ended
	}
	if err := tellDrained(ctx, p.admin); err != nil {
		return false, err
	}
	s.post(func() {
		p.drains()
		s.annotate(p)
	})
	return true, nil
}

// Abort kills an epoch: a starting one is refused, one that serves is started again by the guard, and of one that was
// replaced the connections that are left are cut (the keeper takes the place of the parent that its child then misses).
func (s *Supervisor) Abort(ctx context.Context, number int) error {
	err := fmt.Errorf("epoch %d: %w", number, ErrNoEpoch)
	called := s.call(ctx, func() {
		if a := s.attempt; a != nil && a.process.Number == number && !a.adopted {
			a.cancel(ErrAborted)
			err = nil
			return
		}
		for _, p := range s.processes {
			if p.Number == number {
				s.signal(p, syscall.SIGKILL, ErrAborted.Error())
				err = nil
			}
		}
	})
	if called != nil {
		return called
	}
	return err
}
