package operations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
)

// drainPoll is the polling interval of Drain with request.Wait.
const drainPoll = 500 * time.Millisecond

// listenersClose is the time after the end of a drain during which a connection count of zero is
// not final: Envoy's workers close their listeners shortly after the drain, and a count may be 250
// ms old.
const listenersClose = 500 * time.Millisecond

// drainBlind bounds how long the connections of the draining epoch may stay uncountable before the
// wait fails.
const drainBlind = 10 * time.Second

// BeginDrain starts to drain the live epoch and does not wait. It implements status.DrainController
// and bus.Backend.
func (o EpochOperations) BeginDrain(ctx context.Context) error {
	if err := o.Supervisor.Drain(ctx); err != nil {
		return api.NewRefusal(err.Error())
	}
	return nil
}

// Drain starts to drain the live epoch. With request.Wait it returns once no connections are left.
// With request.ReportUnhealthy it only reports the workload as unhealthy upstream.
func (o EpochOperations) Drain(
	ctx context.Context, request api.DrainRequest, progress func(api.Progress),
) (api.DrainResult, error) {
	if request.ReportUnhealthy {
		o.Health.MarkLeaving(health.ReasonLeavingMesh)
		return api.DrainResult{}, nil
	}
	if err := o.BeginDrain(ctx); err != nil {
		return api.DrainResult{}, err
	}
	return drainWait{clients{o.Proxy, o.Keeper}, progress}.until(ctx, request.Wait)
}

// Undrain ends a drain, or the report of the workload as unhealthy, and returns the epoch that
// serves.
func (o EpochOperations) Undrain(
	ctx context.Context, progress func(api.Progress),
) (api.UndrainResult, error) {
	begun := time.Now()
	o.Health.CancelLeaving()
	result, err := o.Supervisor.Undrain(ctx, func(until time.Time, why string) {
		progress(api.Progress{Phase: why, Until: until})
	})
	if refused, ok := errors.AsType[*epoch.AttemptError](err); ok {
		remaining := "no epoch is live"
		if refused.Remaining >= 0 {
			remaining = fmt.Sprintf("epoch %d still drains", refused.Remaining)
		}
		return api.UndrainResult{}, api.NewRefusal("the undrain was refused; "+remaining,
			refused.Reasons...)
	}
	if err != nil {
		return api.UndrainResult{}, api.NewRefusal(err.Error())
	}
	restored := api.UndrainResult{Epoch: result.Epoch, StartMode: string(result.Mode),
		Duration: time.Since(begun)}
	if result.Previous >= 0 {
		restored.PreviousEpoch = &result.Previous
	}
	return restored, nil
}

// drainWait polls a drain.
type drainWait struct {
	proxy    drained
	progress func(api.Progress)
}

// drained is the proxy that drains.
type drained interface {
	Epoch() (live epoch.Epoch, ok bool)
	// Connections returns the number of clients' connections of an epoch.
	Connections(ctx context.Context, e epoch.Epoch) (uint64, error)
}

// until returns the number of connections left. Without wait it returns at once. With wait it
// returns when no connection is left and the listeners are closed: a draining epoch accepts
// connections until its drain time ends, so an earlier count of zero is not final. While another
// epoch replaces the draining one, failed counts do not fail the wait.
func (w drainWait) until(ctx context.Context, wait bool) (api.DrainResult, error) {
	last, counted := api.Progress{}, time.Now()
	for {
		e, ok := w.proxy.Epoch()
		if !ok {
			return api.DrainResult{}, nil // the epoch has ended
		}
		if !e.DrainRequested {
			return api.DrainResult{}, api.NewRefusal("the drain was cancelled by an undrain")
		}
		if !wait && e.ListenersCloseAt.IsZero() {
			return api.DrainResult{UncountedReason: fmt.Sprintf(
				"epoch %d has not confirmed the drain yet; the request is repeated until it does",
				e.Number)}, nil
		}
		// Envoy's workers close their listeners shortly after the drain time ends.
		closed := !e.ListenersCloseAt.IsZero() && time.Since(e.ListenersCloseAt) > listenersClose
		left, err := w.proxy.Connections(ctx, e)
		if err == nil || w.replaced(e) {
			counted = time.Now()
		}
		switch {
		case err != nil && !wait:
			return api.DrainResult{UncountedReason: fmt.Sprintf(
				"cannot count the connections of epoch %d: %v", e.Number, err)}, nil
		case err != nil && time.Since(counted) > drainBlind:
			return api.DrainResult{},
				fmt.Errorf("cannot count the connections of draining epoch %d: %w", e.Number, err)
		case err == nil && closed && (!wait || left == 0):
			return api.DrainResult{Connections: left}, nil
		case err == nil && !wait:
			return api.DrainResult{Connections: left, Until: e.ListenersCloseAt}, nil
		case err == nil:
			now := api.Progress{Phase: "draining", Epoch: &e.Number, Connections: &left}
			if !closed {
				now.Phase = "draining; new connections are accepted until the listeners close"
				now.Until = e.ListenersCloseAt
			}
			if last.Connections == nil || *last.Connections != left || last.Phase != now.Phase ||
				!last.Until.Equal(now.Until) {
				last = now
				w.progress(now)
			}
		}
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
			return api.DrainResult{}, context.Cause(ctx)
		}
	}
}

// replaced reports whether the connections of a draining epoch (was) cannot be counted for a while:
// another epoch replaces it, its admin interface is lost, or it has not confirmed the drain yet.
// The supervisor ends all of these states.
func (w drainWait) replaced(was epoch.Epoch) bool {
	now, ok := w.proxy.Epoch()
	return !ok || now.ID != was.ID || now.State == epoch.StateHandingOver || now.AdminLost ||
		now.ListenersCloseAt.IsZero()
}
