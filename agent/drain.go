package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
)

// drainPoll is how often a drain that is waited for is looked at.
const drainPoll = 200 * time.Millisecond

// drainBlind is how long the connections of an epoch that is said to serve may not be known while a
// drain is waited for.
const drainBlind = 10 * time.Second

// Drain stops taking new connections.
func (b backend) Drain(ctx context.Context, request api.DrainRequest, progress func(api.Progress)) (api.DrainResult, error) {
	if err := b.supervisor.Drain(ctx); err != nil {
		return api.DrainResult{}, api.Refuse(err.Error())
	}
	waiting := drainWait{live: b.proxy.liveEpoch, progress: progress, count: func(ctx context.Context, e epoch.Epoch) (uint64, error) {
		activity, err := b.keeper.Admin(e.AdminAddress).Activity(ctx)
		return activity.Connections, err
	}}
	return waiting.until(ctx, request.Wait)
}

// Undrain restores service after a drain.
func (b backend) Undrain(ctx context.Context, progress func(api.Progress)) (api.UndrainResult, error) {
	begun := time.Now()
	result, err := b.supervisor.Undrain(ctx, func(until time.Time, why string) {
		progress(api.Progress{Phase: why, Until: until})
	})
	if refused, ok := errors.AsType[*epoch.Refused](err); ok {
		goesOn := "no epoch is live"
		if refused.Remaining >= 0 {
			goesOn = fmt.Sprintf("epoch %d still drains", refused.Remaining)
		}
		return api.UndrainResult{}, api.Refuse("the undrain was refused; "+goesOn, refused.Reasons...)
	}
	if err != nil {
		return api.UndrainResult{}, api.Refuse(err.Error())
	}
	restored := api.UndrainResult{Epoch: result.Epoch, Mode: string(result.Mode), Duration: time.Since(begun)}
	if result.Previous >= 0 {
		restored.Previous = &result.Previous
	}
	return restored, nil
}

// drainWait looks at a drain.
type drainWait struct {
	live     func() (epoch.Epoch, bool)
	count    func(ctx context.Context, e epoch.Epoch) (connections uint64, err error)
	progress func(api.Progress)
}

// until returns how many connections are left: at once, or once none is and none can come. An epoch
// that drains takes new ones until its drain time is over, so that zero means nothing before. That
// it cannot be asked is no news while another epoch takes over.
func (w drainWait) until(ctx context.Context, wait bool) (api.DrainResult, error) {
	told, counted := api.Progress{}, time.Now()
	for {
		e, ok := w.live()
		if !ok {
			return api.DrainResult{}, nil // it ended: nothing is left
		}
		if !e.Drained {
			return api.DrainResult{}, api.Refuse("the drain was taken back")
		}
		if !wait && e.DrainEnds.IsZero() {
			return api.DrainResult{Unknown: fmt.Sprintf("epoch %d has not said yet that it drains, and is told until it does", e.Number)}, nil
		}
		// Envoy's workers close them a moment later
		closed := !e.DrainEnds.IsZero() && time.Since(e.DrainEnds) > drainPoll
		left, err := w.count(ctx, e)
		if err == nil || w.handsOver(e) {
			counted = time.Now()
		}
		switch {
		case err != nil && !wait:
			return api.DrainResult{Unknown: fmt.Sprintf("epoch %d does not say how many connections are left: %v", e.Number, err)}, nil
		case err != nil && time.Since(counted) > drainBlind:
			return api.DrainResult{}, fmt.Errorf("count the connections of epoch %d, which drains: %w", e.Number, err)
		case err == nil && (!wait || closed && left == 0):
			return api.DrainResult{Connections: left}, nil
		case err == nil:
			now := api.Progress{Phase: "draining", Epoch: &e.Number, Connections: &left}
			if !closed {
				now.Phase, now.Until = "draining; new connections are taken until the listeners close", e.DrainEnds
			}
			if told.Connections == nil || *told.Connections != left || told.Phase != now.Phase || !told.Until.Equal(now.Until) {
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

// handsOver is whether an epoch could not be asked because another one takes over, or because it
// has not taken the drain yet: the supervisor sees to both.
func (w drainWait) handsOver(was epoch.Epoch) bool {
	now, ok := w.live()
	return !ok || now.ID != was.ID || now.State == epoch.HandingOver || now.AdminLost || now.DrainEnds.IsZero()
}
