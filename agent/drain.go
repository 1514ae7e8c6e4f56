package agent

import (
	"context"
	"fmt"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
)

// drainPoll is how often a drain that is waited for is looked at.
const drainPoll = 200 * time.Millisecond

// Drain stops taking new connections.
func (b backend) Drain(ctx context.Context, request api.DrainRequest, progress func(api.Progress)) (api.DrainResult, error) {
	if err := b.supervisor.Drain(ctx); err != nil {
		return api.DrainResult{}, api.Refuse(err.Error())
	}
	waiting := drainWait{live: b.proxy.liveEpoch, progress: progress, count: func(ctx context.Context, e epoch.Epoch) (uint64, error) {
		activity, err := b.epochAdmin(e.AdminAddress).Activity(ctx)
		return activity.Connections, err
	}}
	return waiting.until(ctx, request.Wait)
}

// drainWait looks at a drain.
type drainWait struct {
	live     func() (epoch.Epoch, bool)
	count    func(ctx context.Context, e epoch.Epoch) (connections uint64, err error)
	progress func(api.Progress)
}

// until returns how many connections are left: at once, or once none is and none can come. An epoch that drains takes new ones
// until its drain time is over, so that zero means nothing before.
func (w drainWait) until(ctx context.Context, wait bool) (api.DrainResult, error) {
	told := api.Progress{}
	for {
		e, ok := w.live()
		if !ok {
			return api.DrainResult{}, nil // it ended: nothing is left
		}
		if !e.Drained {
			return api.DrainResult{}, api.Refuse("the drain was taken back")
		}
		closed := !e.DrainEnds.IsZero() && time.Since(e.DrainEnds) > drainPoll // Envoy's workers close them a moment later
		left, err := w.count(ctx, e)
		if err != nil {
			return api.DrainResult{}, fmt.Errorf("count the connections of epoch %d: %w", e.Number, err)
		}
		if !wait || closed && left == 0 {
			return api.DrainResult{Connections: left}, nil
		}
		now := api.Progress{Phase: "draining", Epoch: &e.Number, Connections: &left}
		if !closed {
			now.Phase, now.Until = "draining; new connections are taken until the listeners close", e.DrainEnds
		}
		if told.Connections == nil || *told.Connections != left || told.Phase != now.Phase || !told.Until.Equal(now.Until) {
			told = now
			w.progress(now)
		}
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
			return api.DrainResult{}, context.Cause(ctx)
		}
	}
}
