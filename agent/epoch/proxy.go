package epoch

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/envoy"
)

// readyTime bounds one readiness request to Envoy.
const readyTime = time.Second

// Proxy gives the other parts access to the live epoch: readiness, admin interface, statistics.
type Proxy struct {
	supervisor *Supervisor
	closed     func() string // see NewProxy
	waiting    atomic.Pointer[string]
	without    func() (ready bool, reason string)
}

// NewProxy returns the Proxy of a supervisor's epochs. closed returns why the proxy is not ready
// although Envoy is live, "" if nothing prevents it: the mesh configuration may serve nothing, or
// may not be in force where it restricts access.
func NewProxy(supervisor *Supervisor, closed func() string) *Proxy {
	return &Proxy{supervisor: supervisor, closed: closed}
}

// Epoch returns the epoch that serves; ok is false if there is none.
func (p *Proxy) Epoch() (e Epoch, ok bool) {
	e, _, ok = p.supervisor.Live()
	return e, ok
}

// Replace makes ready the readiness of an agent that runs no Envoy. It must be called before the
// parts run.
func (p *Proxy) Replace(ready func() (ready bool, reason string)) { p.without = ready }

// Absent reports whether the agent runs no Envoy.
func (p *Proxy) Absent() bool { return p.without != nil }

// Number returns the number of the epoch that serves, -1 if there is none.
func (p *Proxy) Number() int {
	if e, ok := p.Epoch(); ok {
		return e.Number
	}
	return -1
}

// Drains reports whether the epoch that serves drains on request.
func (p *Proxy) Drains() bool {
	e, ok := p.Epoch()
	return ok && e.Drained
}

// Changed returns a channel that is closed at the next change of an epoch.
func (p *Proxy) Changed() <-chan struct{} { return p.supervisor.Changed() }

// SetWaiting sets a sentence on why the start waits before its first epoch; "" if it does not.
func (p *Proxy) SetWaiting(sentence string) { p.waiting.Store(&sentence) }

// Live implements status.Proxy: it returns a transport to the live epoch's admin interface, and the
// epoch's number.
func (p *Proxy) Live() (http.RoundTripper, int, error) {
	e, ok := p.Epoch()
	if !ok {
		_, reason := p.Ready()
		return nil, 0, fmt.Errorf("no epoch is live: %s", reason)
	}
	if e.AdminLost {
		return nil, 0, fmt.Errorf("epoch %d serves, but it closed its admin interface for an epoch "+
			"that then failed; the agent starts one that brings it back", e.Number)
	}
	return envoy.NewAdmin(e.AdminAddress), e.Number, nil
}

// Ready implements status.Readiness: it reports whether Envoy is live and configured, and if not,
// why. Each call queries Envoy, since only Envoy knows whether it drains.
func (p *Proxy) Ready() (bool, string) { return p.ReadyContext(context.Background()) }

// ReadyContext is Ready with a context.
func (p *Proxy) ReadyContext(ctx context.Context) (bool, string) {
	if p.Absent() {
		return p.without()
	}
	e, ok := p.Epoch()
	if !ok {
		return false, p.NotLive()
	}
	s := proxyState{epoch: e, mesh: p.closed()}
	if s.mesh == "" && needsAnswer(e) {
		ctx, cancel := context.WithTimeout(ctx, readyTime)
		defer cancel()
		s.ready, s.says, s.err = envoy.NewAdmin(e.AdminAddress).Ready(ctx)
		now, still := p.Epoch()
		s.gone = !still
		s.replaced = !still || now.ID != e.ID || now.AdminLost || now.State == HandingOver
	}
	return s.readiness()
}

// NotLive returns why no epoch is live.
func (p *Proxy) NotLive() string {
	if why := p.waiting.Load(); why != nil && *why != "" {
		return *why
	}
	var last *Epoch
	for _, e := range p.supervisor.Epochs() {
		if e.State == Starting {
			return fmt.Sprintf("epoch %d is starting: it is not live yet", e.Number)
		}
		if e.State == Exited && (last == nil || e.Exited.After(last.Exited)) {
			last = &e
		}
	}
	if last != nil {
		return fmt.Sprintf("epoch %d has ended (%s) and no other is live yet", last.Number,
			last.ExitCause)
	}
	return "no epoch was started yet"
}

// readyPoll is the polling interval of WaitReady: Envoy's readiness changes without an event.
const readyPoll = 100 * time.Millisecond

// WaitReady returns "" once the proxy is ready, or the reason why it is not when ctx ends. It calls
// progress whenever the reason changes.
func (p *Proxy) WaitReady(ctx context.Context, progress func(reason string)) string {
	for last := ""; ; {
		changed := p.Changed()
		ready, reason := p.ReadyContext(ctx)
		if ready {
			return ""
		}
		if reason != last {
			last = reason
			progress(reason)
		}
		select {
		case <-changed:
		case <-time.After(readyPoll):
		case <-ctx.Done():
			return reason
		}
	}
}
