package agent

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/driver"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
)

// readyTime bounds one question to Envoy about its readiness.
const readyTime = time.Second

// proxy is the live epoch as the parts that show it see it: readiness, admin interface, figures.
type proxy struct {
	supervisor *epoch.Supervisor
	starting   func() string // why there is no epoch yet, while the agent starts
	closed     func() string // why the mesh configuration is not served at all; "": it is
}

// admin returns a client of an epoch's admin interface.
func (p *proxy) admin(address string) *envoy.Admin { return driver.NewAdmin(address) }

// liveEpoch is the epoch that serves; ok is false if there is none.
func (p *proxy) liveEpoch() (e epoch.Epoch, ok bool) {
	e, _, ok = p.supervisor.Live()
	return e, ok
}

// Live is the live epoch's admin interface (status.Proxy).
func (p *proxy) Live() (http.RoundTripper, int, error) {
	e, ok := p.liveEpoch()
	if !ok {
		_, reason := p.Ready()
		return nil, 0, fmt.Errorf("no epoch is live: %s", reason)
	}
	if e.AdminLost {
		return nil, 0, fmt.Errorf("epoch %d serves, but it closed its admin interface for an epoch that then failed; the agent starts one that brings it back", e.Number)
	}
	return p.admin(e.AdminAddress), e.Number, nil
}

// Ready is whether Envoy is live and has its configuration, and why not (status.Readiness). Envoy
// is asked each time: it alone knows that it drains.
func (p *proxy) Ready() (bool, string) { return p.ready(context.Background()) }

// ready is Ready for a caller that may leave before Envoy answers.
func (p *proxy) ready(ctx context.Context) (bool, string) {
	e, ok := p.liveEpoch()
	if !ok {
		return false, p.notLive()
	}
	if why := p.closed(); why != "" {
		return false, why
	}
	if ready, reason, known := readyUnasked(e); known {
		return ready, reason
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	ready, state, err := p.admin(e.AdminAddress).Ready(ctx)
	switch {
	case err != nil:
		if now, still := p.liveEpoch(); !still || now.ID != e.ID || now.AdminLost || now.State == epoch.HandingOver {
			// In between somebody serves all the time: the old admin closes when the new epoch
			// starts, its listeners do not.
			return still, "an epoch is being replaced"
		}
		return false, fmt.Sprintf("epoch %d does not say whether it is ready: %v", e.Number, err)
	case !ready:
		return false, fmt.Sprintf("epoch %d is %s", e.Number, state)
	}
	return true, ""
}

// readyUnasked reports whether the live epoch is ready where that is known without asking it. A
// drain comes first: it also stands for an epoch that cannot be told. An epoch whose listeners have
// closed or may have closed is not ready: Envoy itself does not say so on its admin interface.
func readyUnasked(e epoch.Epoch) (ready bool, reason string, known bool) {
	switch {
	case e.Drained:
		return false, fmt.Sprintf("epoch %d drains on request; outrider undrain ends the drain", e.Number), true
	case e.MayRefuse:
		return false, fmt.Sprintf("epoch %d may have closed its listeners for an epoch that then died; it is being replaced", e.Number), true
	case e.AdminLost:
		return true, "", true // its data plane serves; there is nobody to ask for more
	case e.Silent:
		return false, fmt.Sprintf("epoch %d lives, but its admin interface does not answer", e.Number), true
	}
	return false, "", false
}

// notLive says why no epoch is live.
func (p *proxy) notLive() string {
	if why := p.starting(); why != "" {
		return why
	}
	var last *epoch.Epoch
	for _, e := range p.supervisor.Epochs() {
		if e.State == epoch.Starting {
			return fmt.Sprintf("epoch %d is starting: it is not live yet", e.Number)
		}
		if e.State == epoch.Exited && (last == nil || e.Exited.After(last.Exited)) {
			last = &e
		}
	}
	if last != nil {
		return fmt.Sprintf("epoch %d has ended (%s) and no other is live yet", last.Number, last.ExitCause)
	}
	return "no epoch was started yet"
}

// waitReady returns nil once the proxy is ready; at the end of ctx, why it is not.
func (p *proxy) waitReady(ctx context.Context, progress func(api.Progress)) error {
	told := ""
	for {
		changed := p.supervisor.Changed()
		ready, reason := p.ready(ctx)
		if ready {
			return nil
		}
		if reason != told {
			told = reason
			progress(api.Progress{Phase: reason})
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &api.Error{Message: "the proxy is not ready: " + reason}
		}
		timer.Stop()
	}
}
