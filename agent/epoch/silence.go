package epoch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// hangs is whether an error of an Admin means that Envoy's main thread does not answer, and not that it has no admin.
func hangs(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.EAGAIN) ||
		errors.As(err, &network) && network.Timeout()
}

// preflight asks the parent of a hot restart whether it answers: its child would wait for it for ever, and leave
// messages in its socket that it acts upon when it wakes up.
func (s *Supervisor) preflight(ctx context.Context, keeper Keeper, parent *process) error {
	ask := func(limit time.Duration) error {
		asking, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		_, err := parent.admin.State(asking)
		return err
	}
	if !hangs(ask(preflightHurry)) || ctx.Err() != nil {
		return nil //nolint:nilerr // any answer is one, an error too
	}
	if err := s.wakeUp(ctx, keeper, parent.ID); err != nil {
		return err
	}
	if err := ask(preflightTimeout); hangs(err) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return nil
}

// wakeUp continues a process that was stopped; any other ignores it.
func (s *Supervisor) wakeUp(ctx context.Context, keeper Keeper, id string) error {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := keeper.Signal(asking, id, syscall.SIGCONT); err != nil {
		return fmt.Errorf("continue Envoy: %w", err)
	}
	return nil
}

// decideProbe asks the live epoch's admin from time to time whether it answers.
func (s *Supervisor) decideProbe() {
	live := s.live()
	if live == nil || s.probing || s.attempt != nil || live.AdminLost {
		return
	}
	if time.Now().Before(s.probeAt) {
		s.at(s.probeAt)
		return
	}
	s.probe(live, s.probed)
}

// examine asks an epoch's admin at once: an epoch that failed may have made it close.
func (s *Supervisor) examine(p *process) {
	s.examining = true
	s.probe(p, func(p *process, err error) {
		s.examining = false
		if err != nil && !hangs(err) && p.Phase == Live {
			s.adminLost(p, "an epoch that failed took it over")
		}
	})
}

func (s *Supervisor) probe(p *process, outcome func(*process, error)) {
	s.probing = true
	admin := p.admin
	s.help(func(ctx context.Context) {
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		_, err := admin.State(asking)
		cancel()
		s.post(func() {
			s.probing, s.probeAt = false, time.Now().Add(probeInterval)
			outcome(p, err)
		})
	})
}

// probed counts the probes that got no answer. An Envoy that stays silent is woken; if that does not help decideNext starts
// another one (side by side, as it cannot hand over).
func (s *Supervisor) probed(p *process, err error) {
	if p.Phase != Live || s.attempt != nil {
		return
	}
	if err == nil {
		p.misses = 0
		if p.Silent {
			p.Silent = false
			s.options.Board.Clear(conditionSilent)
		}
		return
	}
	p.misses++
	switch {
	case p.misses < probeMisses:
	case !hangs(err):
		s.adminLost(p, err.Error())
		p.Silent = true
	case !p.Silent:
		p.Silent = true
		s.options.Board.Raise(conditionSilent, condition.Warning, fmt.Sprintf("Epoch %d does not answer on its admin "+
			"interface (%d questions in a row); its listeners may still serve. It is replaced if it stays so.", p.Number, p.misses))
		if err := s.ask(func(ctx context.Context, k Keeper) error { return s.wakeUp(ctx, k, p.ID) }); err != nil {
			s.log.Warn("silent Envoy could not be continued", "epoch", p.Number, "error", err)
		}
	}
}

// wantsCure is whether a live epoch should be replaced because its admin does not answer, or is gone.
func (s *Supervisor) wantsCure(p *process) bool {
	if !p.AdminLost && (!p.Silent || p.misses == probeMisses) {
		return false // the probe after waking it tells
	}
	if again := p.cured.Add(cureInterval); !p.cured.IsZero() && time.Now().Before(again) {
		s.at(again)
		return false
	}
	return true
}

// cureReason is why the epoch is started that cures p.
func cureReason(p *process) string {
	if p.AdminLost && !p.Silent {
		return fmt.Sprintf("it brings back the admin interface that epoch %d closed for one that failed", p.Number)
	}
	return fmt.Sprintf("the admin interface of epoch %d does not answer", p.Number)
}

// adminLost notes that a live epoch has no admin interface any more; decideNext starts another one.
func (s *Supervisor) adminLost(p *process, why string) {
	p.AdminLost = true
	s.annotate(p)
	s.options.Board.Raise(conditionAdminLost, condition.Warning, fmt.Sprintf("Epoch %d serves, but its admin interface is gone "+
		"(%s): no statistics, no drain. The agent starts an epoch that brings it back as soon as there can be one.", p.Number, why))
}
