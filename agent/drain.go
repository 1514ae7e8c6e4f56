package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
)

// drainPoll is the polling interval of a drain with wait.
const drainPoll = 200 * time.Millisecond

// drainBlind bounds how long the connection count of the draining epoch may be unavailable before
// the wait fails.
const drainBlind = 10 * time.Second

// Drain starts draining the live epoch. With request.Wait it returns once no connections are left.
func (b backend) Drain(
	ctx context.Context, request api.DrainRequest, progress func(api.Progress),
) (api.DrainResult, error) {
	if err := b.supervisor.Drain(ctx); err != nil {
		return api.DrainResult{}, api.Refuse(err.Error())
	}
	waiting := drainWait{live: b.proxy.liveEpoch, progress: progress,
		count: func(ctx context.Context, e epoch.Epoch) (uint64, error) {
			activity, err := b.keeper.Admin(e.AdminAddress).Activity(ctx)
			return activity.Connections, err
		}}
	return waiting.until(ctx, request.Wait)
}

// Undrain ends a drain and returns the epoch that serves.
func (b backend) Undrain(
	ctx context.Context, progress func(api.Progress),
) (api.UndrainResult, error) {
	begun := time.Now()
	result, err := b.supervisor.Undrain(ctx, func(until time.Time, why string) {
		progress(api.Progress{Phase: why, Until: until})
	})
	if refused, ok := errors.AsType[*epoch.Refused](err); ok {
		goesOn := "no epoch is live"
		if refused.Remaining >= 0 {
			goesOn = fmt.Sprintf("epoch %d still drains", refused.Remaining)
		}
		return api.UndrainResult{}, api.Refuse("the undrain was refused; "+goesOn,
			refused.Reasons...)
	}
	if err != nil {
		return api.UndrainResult{}, api.Refuse(err.Error())
	}
	restored := api.UndrainResult{Epoch: result.Epoch, Mode: string(result.Mode),
		Duration: time.Since(begun)}
	if result.Previous >= 0 {
		restored.Previous = &result.Previous
	}
	return restored, nil
}

// drainWait polls a drain.
type drainWait struct {
	live     func() (epoch.Epoch, bool)
	count    func(ctx context.Context, e epoch.Epoch) (connections uint64, err error)
	progress func(api.Progress)
}

// until returns the number of connections left: at once, or with wait once there are none and none
// can come. A draining epoch accepts connections until its drain time ends, so a count of zero
// before that is not final. Failed counts are ignored while another epoch takes over.
func (w drainWait) until(ctx context.Context, wait bool) (api.DrainResult, error) {
	told, counted := api.Progress{}, time.Now()
	for {
		e, ok := w.live()
		if !ok {
			return api.DrainResult{}, nil // the epoch has ended
		}
		if !e.Drained {
			return api.DrainResult{}, api.Refuse("the drain was taken back")
		}
		if !wait && e.DrainEnds.IsZero() {
			return api.DrainResult{Unknown: fmt.Sprintf(
				"epoch %d has not said yet that it drains, and is told until it does",
				e.Number)}, nil
		}
		// Envoy's workers close their listeners a moment after the end of the drain.
		closed := !e.DrainEnds.IsZero() && time.Since(e.DrainEnds) > drainPoll
		left, err := w.count(ctx, e)
		if err == nil || w.handsOver(e) {
			counted = time.Now()
		}
		switch {
		case err != nil && !wait:
			return api.DrainResult{Unknown: fmt.Sprintf(
				"epoch %d does not say how many connections are left: %v", e.Number, err)}, nil
		case err != nil && time.Since(counted) > drainBlind:
			return api.DrainResult{},
				fmt.Errorf("count the connections of epoch %d, which drains: %w", e.Number, err)
		case err == nil && (!wait || closed && left == 0):
			return api.DrainResult{Connections: left}, nil
		case err == nil:
			now := api.Progress{Phase: "draining", Epoch: &e.Number, Connections: &left}
			if !closed {
				now.Phase, now.Until = "draining; new connections are taken until the listeners close", e.DrainEnds
			}
			if told.Connections == nil || *told.Connections != left || told.Phase != now.Phase ||
				!told.Until.Equal(now.Until) {
				told = now
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

// handsOver reports whether an epoch cannot answer because another one replaces it, or because it
// has not confirmed the drain yet. The supervisor resolves both.
func (w drainWait) handsOver(was epoch.Epoch) bool {
	now, ok := w.live()
	return !ok || now.ID != was.ID || now.State == epoch.HandingOver || now.AdminLost ||
		now.DrainEnds.IsZero()
}
