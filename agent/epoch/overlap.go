package epoch

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// endOverdue ends the epochs that are on their way out and should have gone.
func (s *Supervisor) endOverdue() {
	now := time.Now()
	for _, p := range s.older() {
		if p.Ends.IsZero() || !p.killed.IsZero() {
			continue
		}
		kill, why := p.Ends.Add(overdue), "its child should have ended it"
		if p.child == "side" {
			// Nobody but us ends it.
			if p.asked == "" && !now.Before(p.Ends) {
				s.signal(p, syscall.SIGTERM, "replaced, and its drain is over")
			}
			if p.asked == "" {
				s.at(p.Ends)
				continue
			}
			kill, why = p.Ends.Add(terminateTimeout), "it did not end on SIGTERM"
		}
		if now.Before(kill) {
			s.at(kill)
			continue
		}
		s.signal(p, syscall.SIGKILL, why)
	}
}

// drainSideBySide lets an epoch that was replaced by one of another lineage finish what it has begun, then ends it.
func (s *Supervisor) drainSideBySide(p *process) {
	p.child = "side"
	begun := time.Now()
	p.Ends = begun.Add(p.spec.ParentShutdown)
	s.watchDrain(p, begun)
}

// watchDrain runs the helper that drains p, which gets no new connection any more: one that it had not accepted when its listeners
// close would be reset. It may have been told before, by an agent before this one: Envoy ignores that.
func (s *Supervisor) watchDrain(p *process, begun time.Time) {
	ctx, cancel := context.WithDeadline(s.running, p.Ends)
	p.stopDrain = cancel
	keeper, id, admin, drain := s.keeper, p.ID, p.admin, p.spec.Drain
	drainable, brief, closes := !p.AdminLost, drain < steerSettle, begun.Add(drain)
	if !drainable || closes.After(p.Ends) { // of one whose admin is lost nothing can be asked; it goes then
		closes = p.Ends
	}
	p.closes = closes
	s.helpers.Go(func() {
		defer cancel()
		s.steer(ctx, p, closes)
		if !drainable || brief && !sleep(ctx, steerSettle) {
			return
		}
		if err := s.tellDrain(ctx, keeper, id, admin); err != nil {
			s.post(func() { s.undrainable(p, err) })
			return
		}
		// Until its drain time is over it may get new connections, so that zero means nothing before.
		if !sleep(ctx, time.Until(closes)) {
			return
		}
		for {
			activity, err := s.activity(ctx, admin)
			if err == nil && activity.Connections == 0 {
				s.post(func() { p.Ends = time.Now() })
				return
			}
			if !sleep(ctx, pollSlow) {
				return
			}
		}
	})
}

// tellDrain asks an epoch to drain. One that hangs is woken first: it may have been stopped.
func (s *Supervisor) tellDrain(ctx context.Context, keeper Keeper, id string, admin Admin) error {
	ask := func() error {
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return admin.DrainListeners(asking, true)
	}
	err := ask()
	if hangs(err) {
		if err := s.wakeUp(ctx, keeper, id); err != nil {
			return err
		}
		err = ask()
	}
	return err
}

// undrainable is about an epoch that cannot be told to drain. One that hangs takes connections and may never answer them: it
// is ended at once. One whose admin is gone serves what it takes, and is left to until its time is over.
func (s *Supervisor) undrainable(p *process, err error) {
	if !p.alive() {
		return
	}
	s.log.Warn("epoch cannot be drained", "epoch", p.Number, "error", err)
	if hangs(err) {
		s.signal(p, syscall.SIGKILL, fmt.Sprintf("replaced, and it does not answer: %v", err))
		return
	}
}

func (s *Supervisor) activity(ctx context.Context, admin Admin) (Activity, error) {
	asking, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return admin.Activity(asking)
}

// killAll ends all that lives at once.
func (s *Supervisor) killAll(why string) {
	for _, p := range s.living() {
		s.signal(p, syscall.SIGKILL, why)
	}
}

// sleep is false if ctx ended first.
func sleep(ctx context.Context, duration time.Duration) bool {
	if duration <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// after runs a function in the owner's goroutine later, if Run still goes then.
func (s *Supervisor) after(delay time.Duration, function func()) {
	s.help(func(ctx context.Context) {
		if sleep(ctx, delay) {
			s.post(function)
		}
	})
}
