package epoch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/keeper"
)

// probe checks whether the admin interface of an epoch answers.
type probe struct {
	id, admin string
	examine   bool
}

func (a probe) run(x *executor) {
	x.job("probe", func(ctx context.Context) {
		x.post(probed{a.id, a.examine, x.state(ctx, a.admin, probeTimeout)})
	})
}

// requestDrain sends a drain request to an epoch, for a call of Drain.
type requestDrain struct{ id, admin string }

func (a requestDrain) run(x *executor) {
	x.job("request drain", func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, drainTimeout)
		defer cancel()
		admin := x.options.Admin(a.admin)
		err := admin.FailHealthcheck(ctx)
		if err != nil {
			err = fmt.Errorf("fail Envoy's health check: %w", err)
		} else if err = admin.DrainListeners(ctx, true); hangs(err) {
			err = fmt.Errorf("%w: drain the listeners: %w", errUnconfirmed, err)
		} else if err != nil {
			err = fmt.Errorf("drain the listeners: %w", err)
		}
		x.post(drainAnswered{a.id, err})
	})
}

// restoreHealth sends /healthcheck/ok to an epoch whose drain request failed, because its
// /healthcheck/fail may have taken effect.
type restoreHealth struct {
	id, admin string
	refusal   error
}

func (a restoreHealth) run(x *executor) {
	x.job("request drain", func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		_ = x.options.Admin(a.admin).OKHealthcheck(ctx)
		x.post(healthRestored{a.refusal})
	})
}

// drainOlder drains an epoch after an epoch of another lineage has replaced it, and reports when no
// client is connected any more. First it steers new connections to the other epoch: the kernel
// resets those that this epoch has not accepted when its listeners close.
type drainOlder struct {
	id, admin    string
	ends, closes time.Time
	drainable    bool
	// the drain time is so short that the queued connections must be accepted before the drain
	// starts
	brief bool
	steer *steer // nil: no other epoch is live
}

func (a drainOlder) run(x *executor) {
	x.job(drainJob(a.id), func(ctx context.Context) {
		ctx, cancel := context.WithDeadline(ctx, a.ends)
		defer cancel()
		if a.steer != nil {
			a.steer.do(ctx, x)
		}
		if !a.drainable || a.brief && !sleep(ctx, acceptQueued) {
			return
		}
		admin := x.options.Admin(a.admin)
		err := x.insist(ctx, a.id, func(ctx context.Context) error {
			return admin.DrainListeners(ctx, true)
		})
		if err != nil {
			x.post(drainedOlder{a.id, err})
			return
		}
		// The epoch may accept new connections until its drain time is over, so counting starts
		// only then.
		for ok := sleep(ctx, time.Until(a.closes)); ok; ok = sleep(ctx, pollSlow) {
			activity, err := x.activity(ctx, admin)
			if err == nil && activity.Connections == 0 {
				x.post(drainedOlder{a.id, nil})
				return
			}
		}
	})
}

// insist sends a request to an epoch. If Envoy does not respond, it may have been stopped by a
// signal. Then insist sends SIGCONT and repeats the request.
func (x *executor) insist(ctx context.Context, id string,
	request func(context.Context) error) error {
	once := func() error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return request(ctx)
	}
	err := once()
	if !hangs(err) || ctx.Err() != nil || x.wakeUp(ctx, id) != nil {
		return err
	}
	return once()
}

func (x *executor) activity(ctx context.Context, admin Admin) (envoy.ActiveTraffic, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return admin.ActiveTraffic(ctx)
}

// steer makes the keeper direct the new connections of ports that two epochs share to one of the
// epochs. If the keeper cannot, the kernel distributes them over both, and resets the few that the
// other epoch has not accepted when it closes its listeners. This does not make the new epoch fail.
type steer struct {
	from, to string
	number   int
	closes   time.Time
}

func (a steer) run(x *executor) {
	x.job("steer "+a.from, func(ctx context.Context) { a.do(ctx, x) })
}

func (a steer) do(ctx context.Context, x *executor) {
	// short, because the drain starts only afterwards
	limited, cancel := context.WithTimeout(ctx, acceptQueued)
	defer cancel()
	err := x.withKeeper(limited, func(ctx context.Context, k Keeper) error {
		return k.SteerNewConnections(ctx, a.from, a.to, max(time.Until(a.closes), 0))
	})
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		x.logs(slog.LevelWarn, "cannot steer new connections to the new epoch: some may be "+
			"reset when the old one closes its listeners", "epoch", a.number, "error", err)
	}
}

// countConnections counts the connections of an epoch until the epoch has exited, or until it had
// no connection and did not listen in countsQuiet counts in succession.
type countConnections struct {
	id   string
	from time.Time
}

func (a countConnections) run(x *executor) {
	x.job("count "+a.id, func(ctx context.Context) {
		if !sleep(ctx, time.Until(a.from)) {
			return
		}
		for quiet := 0; ; {
			all, err := x.measure(ctx)
			p, ok := all[a.id]
			left := int(p.ClientConnections)
			switch {
			case err != nil: // the keeper is busy or re-executes itself: repeat later
				quiet, left = 0, -1
			case !ok || p.Exit != nil:
				return
			case p.ClientConnections == 0 && !p.HasListeners:
				quiet++
			default:
				quiet = 0
			}
			x.post(counted{a.id, left, quiet == 0, quiet == countsQuiet})
			if quiet == countsQuiet || !sleep(ctx, idleEvery) {
				return
			}
		}
	})
}

// measure returns the keeper's processes with their connection counts, by ID.
func (x *executor) measure(ctx context.Context) (map[string]keeper.Process, error) {
	found := map[string]keeper.Process{}
	err := x.withKeeper(ctx, func(ctx context.Context, k Keeper) error {
		processes, err := k.MeasureProcesses(ctx, 0)
		for _, p := range processes {
			found[p.ID] = p
		}
		return err
	})
	return found, err
}

// drainToStop drains the live epoch for a stop, and waits for the connections of older epochs to
// end.
type drainToStop struct {
	id, admin string
	number    int
	config    config.Envoy
	until     time.Time // end of maximum_drain_duration
	older     []leaving
}

// leaving is an older epoch on whose connections a stop waits.
type leaving struct {
	id   string
	ends time.Time
}

func (a drainToStop) run(x *executor) {
	x.job(stopJob, func(ctx context.Context) {
		ctx, cancel := context.WithDeadline(ctx, a.until)
		defer cancel()
		waits := slices.Clone(a.older)
		switch err := a.drain(ctx, x); {
		case err == nil || ctx.Err() != nil:
		case hangs(err): // Envoy serves no client
			x.logs(slog.LevelWarn, "Envoy hangs: the stop does not wait for its connections",
				"epoch", a.number, "error", err)
		default:
			x.logs(slog.LevelWarn, "cannot read requests in flight: the stop waits until no "+
				"client is connected", "epoch", a.number, "until", a.until.Format(time.TimeOnly),
				"error", err)
			waits = append(waits, leaving{a.id, a.until})
		}
		x.awaitConnections(ctx, waits)
		x.post(stopDrained{})
	})
}

// drain returns when no request is in flight and no tunnel is open, or when ctx ends. It returns an
// error if it cannot determine that. In both cases Envoy accepts no new connections when drain
// returns.
func (a drainToStop) drain(ctx context.Context, x *executor) error {
	admin := x.options.Admin(a.admin)
	failing := x.insist(ctx, a.id, admin.FailHealthcheck)
	if failing != nil {
		x.logs(slog.LevelWarn, "cannot fail the health check", "error", failing)
	}
	if a.config.ExitOnZeroActiveConnections && failing == nil {
		if !sleep(ctx, a.config.MinimumDrainDuration) {
			return nil
		}
		err := x.awaitActivity(ctx, admin, 0,
			func(a envoy.ActiveTraffic) bool { return a.Connections == 0 })
		if err != nil {
			x.logs(slog.LevelWarn, "cannot count connections of Envoy: closing its listeners",
				"error", err)
		}
	} else if !sleep(ctx, a.config.TerminationDrainDuration) {
		return nil
	}
	// A graceful drain would close the listeners only at the end of Envoy's drain time.
	err := x.insist(ctx, a.id, func(ctx context.Context) error {
		return admin.DrainListeners(ctx, false)
	})
	if err != nil {
		return fmt.Errorf("drain the listeners: %w", err)
	}
	return x.awaitActivity(ctx, admin, quietFor, envoy.ActiveTraffic.Idle)
}

// awaitActivity returns when done has returned true for the time lasting, or when ctx has ended.
func (x *executor) awaitActivity(ctx context.Context, admin Admin, lasting time.Duration,
	done func(envoy.ActiveTraffic) bool) error {
	var since time.Time
	for refused := 0; ctx.Err() == nil; sleep(ctx, pollSlow) {
		activity, err := x.activity(ctx, admin)
		now := time.Now()
		switch {
		case err != nil:
			if refused++; refused == adminRefusals {
				return fmt.Errorf("read the number of requests in flight: %w", err)
			}
			since = time.Time{}
		case !done(activity):
			refused, since = 0, time.Time{}
		case since.IsZero():
			refused, since = 0, now
		}
		if !since.IsZero() && now.Sub(since) >= lasting {
			return nil
		}
	}
	return nil
}

// awaitConnections returns when no client is connected to the epochs, or when the time at which
// they exit has passed. It counts in the keeper, because the admin interfaces of the epochs are
// closed.
func (x *executor) awaitConnections(ctx context.Context, epochs []leaving) {
	for quiet := 0; len(epochs) > 0 && ctx.Err() == nil; sleep(ctx, countEvery) {
		all, err := x.measure(ctx)
		waits := slices.ContainsFunc(epochs, func(e leaving) bool {
			p, ok := all[e.id]
			connected := err != nil || ok && p.Exit == nil && p.ClientConnections > 0
			// if counting fails, the connections may still exist
			return connected && time.Now().Before(e.ends)
		})
		quiet++
		if waits {
			quiet = 0
		}
		if quiet == countsQuiet {
			return
		}
	}
}
