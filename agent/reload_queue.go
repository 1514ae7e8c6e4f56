package agent

import (
	"context"
	"sync/atomic"

	"outrider.org/outrider/agent/api"
)

// queuedWork is a queued call of methods of effects. Each call waits for the previous one, so that
// settings take effect in the order of the commits.
type queuedWork struct {
	done chan struct{}
	step atomic.Pointer[string] // the component that the call currently waits for
}

// queue calls work in a helper goroutine after all earlier work has ended, and then next in the
// goroutine of Run. While it waits, the progress of request names the step of the earlier work.
// request and next may be nil.
func (r *reloader) queue(
	ctx context.Context, request *reload, work func(step func(string)), next func(),
) {
	before, now := r.queued, &queuedWork{done: make(chan struct{})}
	r.queued = now
	go func() {
		defer close(now.done)
		if before != nil && !before.wait(ctx, request) {
			return
		}
		work(func(name string) {
			now.step.Store(&name)
			if request != nil {
				request.progress(api.Progress{Phase: "applying settings: " + name})
			}
		})
		if next != nil {
			r.post(ctx, next)
		}
	}()
}

// wait waits until the work has ended and returns true, or false if ctx ends first.
func (s *queuedWork) wait(ctx context.Context, request *reload) bool {
	select {
	case <-s.done:
		return true
	default:
	}
	if step := s.step.Load(); request != nil && step != nil {
		phase := "waiting until earlier settings take effect: " + *step
		request.progress(api.Progress{Phase: phase})
	}
	select {
	case <-s.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// adjustEpoch queues a call of AdjustEpoch if the live epoch has changed without a reload. At most
// one such call is queued.
func (r *reloader) adjustEpoch(ctx context.Context) {
	if r.adjusting {
		return
	}
	live, _, ok := r.supervisor.Live()
	if !ok || live.ID == r.adjusted {
		return
	}
	r.adjusting, r.adjusted = true, live.ID
	r.mu.Lock()
	if r.last != nil { // a repair or an undrain has made another epoch live since the last reload
		last := *r.last
		last.Epoch = &live.Number
		r.last = &last
	}
	r.mu.Unlock()
	r.queue(ctx, nil, func(step func(string)) { r.effects.AdjustEpoch(ctx, step) },
		func() { r.adjusting = false })
}
