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

// Proxy provides the live epoch's readiness, admin interface and statistics to other components.
type Proxy struct {
	supervisor *Supervisor
	closed     func() string // parameter notServing of NewProxy
	waiting    atomic.Pointer[string]
	without    func() (ready bool, reason string)
}

// NewProxy returns the Proxy of a supervisor's epochs. notServing returns the reason why the proxy
// is not ready although Envoy is live, or "". Such reasons are a mesh configuration without
// anything to serve, and one that restricts access but is not applied yet.
func NewProxy(supervisor *Supervisor, notServing func() string) *Proxy {
	return &Proxy{supervisor: supervisor, closed: notServing}
}

// Epoch returns the serving epoch; ok is false if there is none.
func (p *Proxy) Epoch() (e Epoch, ok bool) {
	e, _, ok = p.supervisor.Live()
	return e, ok
}

// SetReadinessWithoutEnvoy sets the function that determines the readiness of an agent without
// Envoy. It must be called before other goroutines use the Proxy.
func (p *Proxy) SetReadinessWithoutEnvoy(ready func() (ready bool,
	reason string)) {
	p.without = ready
}

// WithoutEnvoy reports whether the agent runs no Envoy.
func (p *Proxy) WithoutEnvoy() bool { return p.without != nil }

// EpochNumber returns the number of the serving epoch, -1 if there is none.
func (p *Proxy) EpochNumber() int {
	if e, ok := p.Epoch(); ok {
		return e.Number
	}
	return -1
}

// Draining reports whether the serving epoch drains on request.
func (p *Proxy) Draining() bool {
	e, ok := p.Epoch()
	return ok && e.DrainRequested
}

// Changed returns a channel that is closed when an epoch changes.
func (p *Proxy) Changed() <-chan struct{} { return p.supervisor.Changed() }

// SetFirstEpochWaitReason sets the sentence that describes why the first epoch is not started yet;
// "": the start does not wait.
func (p *Proxy) SetFirstEpochWaitReason(sentence string) { p.waiting.Store(&sentence) }

// LiveAdmin implements status.Proxy. It returns a transport to the live epoch's admin interface,
// and the epoch's number.
func (p *Proxy) LiveAdmin() (http.RoundTripper, int, error) {
	e, ok := p.Epoch()
	if !ok {
		_, reason := p.Ready()
		return nil, 0, fmt.Errorf("no epoch is live: %s", reason)
	}
	if e.AdminLost {
		return nil, 0, fmt.Errorf("epoch %d has no admin interface: Envoy closed it for "+
			"a newer epoch that then failed; the agent starts an epoch that has one", e.Number)
	}
	return envoy.NewAdmin(e.AdminAddress), e.Number, nil
}

// Ready implements status.Readiness. It reports whether Envoy is live and configured; if not, it
// returns the reason. Each call queries Envoy, because only Envoy knows whether it drains.
func (p *Proxy) Ready() (bool, string) { return p.ReadyContext(context.Background()) }

// ReadyContext is Ready with a context.
func (p *Proxy) ReadyContext(ctx context.Context) (bool, string) {
	if p.WithoutEnvoy() {
		return p.without()
	}
	e, ok := p.Epoch()
	if !ok {
		return false, p.NotLiveReason()
	}
	s := proxyState{epoch: e, mesh: p.closed()}
	if s.mesh == "" && needsAnswer(e) {
		ctx, cancel := context.WithTimeout(ctx, readyTime)
		defer cancel()
		s.ready, s.says, s.err = envoy.NewAdmin(e.AdminAddress).Ready(ctx)
		now, still := p.Epoch()
		s.gone = !still
		s.replaced = !still || now.ID != e.ID || now.AdminLost || now.State == StateHandingOver
	}
	return s.readiness()
}

// NotLiveReason returns the reason why no epoch is live.
func (p *Proxy) NotLiveReason() string {
	if why := p.waiting.Load(); why != nil && *why != "" {
		return *why
	}
	var last *Epoch
	for _, e := range p.supervisor.Epochs() {
		if e.State == StateStarting {
			return fmt.Sprintf("epoch %d is starting: it is not live yet", e.Number)
		}
		if e.State == StateExited && (last == nil || e.Exited.After(last.Exited)) {
			last = &e
		}
	}
	if last != nil {
		return fmt.Sprintf("epoch %d has ended (%s) and no other is live yet", last.Number,
			last.ExitCause)
	}
	return "no epoch was started yet"
}

// readyPoll is the polling interval of WaitReady. No event announces a change of Envoy's readiness.
const readyPoll = 100 * time.Millisecond

// WaitReady returns "" once the proxy is ready. If ctx ends first, it returns the reason why the
// proxy is not ready. It calls progress whenever the reason changes.
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
