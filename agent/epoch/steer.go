package epoch

import (
	"context"
	"errors"
	"time"
)

// steer has the keeper see to it that connections to the ports that p has in common with the live epoch come to that one alone. Where
// it cannot be had the two share them, and a few are reset when p closes its listeners, at the given time: no reason to do without the new epoch. It
// runs in a helper.
func (s *Supervisor) steer(ctx context.Context, p *process, closes time.Time) {
	var keeper Keeper
	var from, to string
	var number int
	err := s.call(ctx, func() {
		if live := s.live(); live != nil && live != p && p.alive() {
			from, to, number, keeper = p.ID, live.ID, p.Number, s.keeper
		}
	})
	if err != nil || to == "" {
		return // it is over
	}
	err = errKeeperLost
	if keeper != nil {
		asking, cancel := context.WithTimeout(ctx, steerSettle) // its drain waits for it
		err = keeper.Steer(asking, from, to, max(time.Until(closes), 0))
		cancel()
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		s.log.Warn("new connections still come to an epoch that was replaced, and may be reset when it closes its listeners", "epoch", number, "error", err)
	}
}
