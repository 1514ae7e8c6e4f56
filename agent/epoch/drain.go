package epoch

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// Drain makes the live epoch fail its health checks and close its listeners at the end of its drain time; nothing in
// flight is aborted. It is a standing wish: an epoch that comes later drains as well, until Undrain. It stands also where Envoy may
// have taken it and did not say so, or is about to be replaced: then it is told until it does. A Drain that fails changes nothing.
func (s *Supervisor) Drain(ctx context.Context) error { return s.setDrained(ctx, true) }

// Undrain takes Drain back. Listeners that have closed return with the next epoch. An Undrain that fails changes nothing.
func (s *Supervisor) Undrain(ctx context.Context) error { return s.setDrained(ctx, false) }

// errUnconfirmed is about a drain that Envoy may carry out later, as it was busy when it was told: nothing takes that back.
var errUnconfirmed = errors.New("it is not known whether Envoy drains")

func (s *Supervisor) setDrained(ctx context.Context, drained bool) error {
	select {
	case s.telling <- struct{}{}:
		defer func() { <-s.telling }()
	case <-s.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
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
	// From here on whoever asked may leave: what Envoy was told is to be known.
	err := tellDrained(running, live.admin, drained)
	stands, seen := false, make(chan struct{})
	if called := s.call(context.WithoutCancel(ctx), func() {
		if stands = err == nil || errors.Is(err, errUnconfirmed) || s.handsOver(live); stands {
			s.wish(live, drained, err)
		}
		s.replies = append(s.replies, func() { close(seen) })
	}); called != nil {
		return called
	}
	<-seen // by readers
	if stands {
		return nil
	}
	if drained != before { // it may have done a part of it, or does it when it answers again
		taking, cancel := context.WithTimeout(context.WithoutCancel(running), probeTimeout)
		defer cancel()
		_ = tellHealth(taking, live.admin, !before)
	}
	return fmt.Errorf("epoch %d: %w", live.Number, err)
}

// handsOver is whether another epoch serves in the place of one that was, or is about to: that one will be told what is wanted.
func (s *Supervisor) handsOver(was *process) bool {
	now := s.live()
	return now != nil && (now != was || now.AdminLost || s.attempt != nil || s.examining)
}

// wish notes what the operator wants of the host after an epoch was told; err is why it has not said that it does it.
func (s *Supervisor) wish(told *process, drained bool, err error) {
	s.drained = drained
	switch now := s.live(); {
	case now == told && err == nil:
		now.Drained = drained
		now.drains()
		s.annotate(now)
	case now != nil:
		s.drainAgain(now)
	}
	kind, does, todo := condition.KindUndrained, "takes new connections again, but for listeners that have closed", "take new connections again"
	if drained {
		kind, does, todo = condition.KindDraining, "drains: its listeners close at the end of its drain time", "drain"
	}
	sentence := fmt.Sprintf("epoch %d %s", told.Number, does)
	if err != nil {
		sentence = fmt.Sprintf("epoch %d is to %s and has not said that it does; it, or the one that replaces it, is told until it does (%v)", told.Number, todo, err)
	}
	s.event(kind, told, sentence, nil)
}

// drains notes when the listeners close of an epoch that has taken that it is to drain. Envoy counts from the first time that it is told,
// whatever it is told later: nothing ends that.
func (p *process) drains() {
	if p.Drained && p.DrainEnds.IsZero() {
		p.DrainEnds = time.Now().Add(p.spec.Drain)
	}
}

// tellDrained tells an epoch to drain, or not to, within tellTimeout.
func tellDrained(ctx context.Context, admin Admin, drained bool) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	if err := tellHealth(ctx, admin, !drained); err != nil {
		return fmt.Errorf("set the health check: %w", err)
	}
	if !drained {
		return nil
	}
	switch err := admin.DrainListeners(ctx, true); {
	case hangs(err):
		return fmt.Errorf("%w: drain the listeners: %w", errUnconfirmed, err)
	case err != nil:
		return fmt.Errorf("drain the listeners: %w", err)
	}
	return nil
}

func tellHealth(ctx context.Context, admin Admin, healthy bool) error {
	if healthy {
		return admin.OKHealthcheck(ctx)
	}
	return admin.FailHealthcheck(ctx)
}

// drainAgain has an epoch do what the operator wants of the host, drain or not, and tells it until it does.
func (s *Supervisor) drainAgain(p *process) {
	p.Drained = s.drained
	s.annotate(p)
	s.help(func(ctx context.Context) {
		for try := 1; ; try++ {
			settled, err := s.tellWish(ctx, p)
			if settled {
				return
			}
			if try == 1 {
				s.log.Warn("epoch could not be told whether to drain; it is told again", "epoch", p.Number, "error", err)
			}
			if !sleep(ctx, probeInterval) {
				return
			}
		}
	})
}

// tellWish tells an epoch once whether to drain. It is settled when it has taken that, or is not to be told any more. It runs in a helper.
func (s *Supervisor) tellWish(ctx context.Context, p *process) (settled bool, err error) {
	select {
	case s.telling <- struct{}{}:
		defer func() { <-s.telling }()
	case <-ctx.Done():
		return true, nil
	}
	over, drained := false, false
	if err := s.call(ctx, func() { over, drained = p.Phase != Live || s.stop != nil, s.drained }); err != nil || over {
		return true, nil //nolint:nilerr // Run has ended
	}
	if err := tellDrained(ctx, p.admin, drained); err != nil {
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
