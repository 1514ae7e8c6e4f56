package epoch

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// Drain makes the live epoch fail its health checks and close its listeners at the end of its drain time; nothing in
// flight is aborted. It is a standing wish: an epoch that comes later drains as well, until Undrain. A Drain that fails changes nothing.
func (s *Supervisor) Drain(ctx context.Context) error { return s.setDrained(ctx, true) }

// Undrain takes Drain back. Listeners that have closed return with the next epoch. An Undrain that fails changes nothing.
func (s *Supervisor) Undrain(ctx context.Context) error { return s.setDrained(ctx, false) }

func (s *Supervisor) setDrained(ctx context.Context, drained bool) error {
	var live *process
	before := false
	if err := s.call(ctx, func() {
		if live = s.live(); live != nil {
			before = live.Drained
		}
	}); err != nil {
		return err
	}
	if live == nil {
		return ErrNotLive
	}
	kind, sentence := condition.KindUndrained, "takes new connections again, but for listeners that have closed"
	if drained {
		kind, sentence = condition.KindDraining, "drains: its listeners close at the end of its drain time"
	}
	settled := context.WithoutCancel(ctx) // what Envoy was told is to be known, whoever waits for it
	if err := tellDrained(ctx, live.admin, drained); err != nil {
		if drained != before { // it may have done a part of it, or all and not answered in time
			taking, cancel := context.WithTimeout(settled, probeTimeout)
			defer cancel()
			_ = tellHealth(taking, live.admin, !before)
		}
		return fmt.Errorf("epoch %d: %w", live.Number, err)
	}
	seen := make(chan struct{})
	if err := s.call(settled, func() {
		s.drained = drained
		if live.Phase == Live {
			live.Drained = drained
			live.drains()
			s.annotate(live)
		} else if now := s.live(); now != nil { // it got live meanwhile
			s.drainAgain(now)
		}
		s.event(kind, live, fmt.Sprintf("epoch %d %s", live.Number, sentence), nil)
		s.replies = append(s.replies, func() { close(seen) })
	}); err != nil {
		return err
	}
	<-seen // by readers
	return nil
}

// drains notes when the listeners close of an epoch that has taken that it is to drain. Envoy counts from the first time that it is told,
// whatever it is told later: nothing ends that.
func (p *process) drains() {
	if p.Drained && p.DrainEnds.IsZero() {
		p.DrainEnds = time.Now().Add(p.spec.Drain)
	}
}

// tellDrained tells an epoch to drain, or not to.
func tellDrained(ctx context.Context, admin Admin, drained bool) error {
	if err := tellHealth(ctx, admin, !drained); err != nil {
		return fmt.Errorf("set the health check: %w", err)
	}
	if !drained {
		return nil
	}
	if err := admin.DrainListeners(ctx, true); err != nil {
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

// drainAgain has a new epoch do what the operator wants of the host: drain, or not.
func (s *Supervisor) drainAgain(p *process) {
	p.Drained = s.drained
	s.annotate(p)
	admin, number, drained := p.admin, p.Number, s.drained
	s.help(func(ctx context.Context) {
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if err := tellDrained(asking, admin, drained); err != nil {
			s.log.Warn("a new epoch could not be told whether to drain", "epoch", number, "drain", drained, "error", err)
			return
		}
		s.post(func() {
			p.drains()
			s.annotate(p)
		})
	})
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
