package epoch

import (
	"context"
	"fmt"
	"syscall"

	"outrider.org/outrider/agent/condition"
)

// Drain makes the live epoch fail its health checks and close its listeners at the end of its drain time; nothing in
// flight is aborted. It is a standing wish: an epoch that comes later drains as well, until Undrain.
func (s *Supervisor) Drain(ctx context.Context) error { return s.setDrained(ctx, true) }

// Undrain takes Drain back. Listeners that have closed return with the next epoch.
func (s *Supervisor) Undrain(ctx context.Context) error { return s.setDrained(ctx, false) }

func (s *Supervisor) setDrained(ctx context.Context, drained bool) error {
	var live *process
	if err := s.call(ctx, func() { live, s.drained = s.live(), drained }); err != nil {
		return err
	}
	if live == nil {
		return ErrNotLive
	}
	kind, sentence := condition.KindUndrained, "takes new connections again, but for listeners that have closed"
	var err error
	if drained {
		kind, sentence = condition.KindDraining, "drains: its listeners close at the end of its drain time"
		err = drainLive(ctx, live.admin)
	} else {
		err = live.admin.OKHealthcheck(ctx)
	}
	if err != nil {
		return fmt.Errorf("epoch %d: %w", live.Number, err)
	}
	return s.call(ctx, func() {
		if live.Phase == Live {
			live.Drained = drained
			s.annotate(live)
		}
		s.event(kind, live, fmt.Sprintf("epoch %d %s", live.Number, sentence), nil)
	})
}

func drainLive(ctx context.Context, admin Admin) error {
	if err := admin.FailHealthcheck(ctx); err != nil {
		return fmt.Errorf("fail the health check: %w", err)
	}
	if err := admin.DrainListeners(ctx, true); err != nil {
		return fmt.Errorf("drain the listeners: %w", err)
	}
	return nil
}

// drainAgain makes a new epoch drain because the operator wants the host drained.
func (s *Supervisor) drainAgain(p *process) {
	p.Drained = true
	s.annotate(p)
	admin, number := p.admin, p.Number
	s.help(func(ctx context.Context) {
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if err := drainLive(asking, admin); err != nil {
			s.log.Warn("a new epoch could not be drained", "epoch", number, "error", err)
		}
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
