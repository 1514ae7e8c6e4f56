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

// readyTime bounds one readiness request to Envoy.
const readyTime = time.Second

// proxy gives the other parts access to the live epoch: readiness, admin interface, statistics.
type proxy struct {
	supervisor *epoch.Supervisor
	starting   func() string // why the start has no epoch yet; "" if it waits for nothing
	closed     func() string // why the mesh configuration is not served; "" if it is
}

// admin returns a client of an epoch's admin interface.
func (p *proxy) admin(address string) *envoy.Admin { return driver.NewAdmin(address) }

// liveEpoch returns the epoch that serves; ok is false if there is none.
func (p *proxy) liveEpoch() (e epoch.Epoch, ok bool) {
	e, _, ok = p.supervisor.Live()
	return e, ok
}

// Live implements status.Proxy: it returns a transport to the live epoch's admin interface, and the
// epoch's number.
func (p *proxy) Live() (http.RoundTripper, int, error) {
	e, ok := p.liveEpoch()
	if !ok {
		_, reason := p.Ready()
		return nil, 0, fmt.Errorf("no epoch is live: %s", reason)
	}
	if e.AdminLost {
		return nil, 0,
			fmt.Errorf("epoch %d serves, but it closed its admin interface for an epoch that then failed; the agent starts one that brings it back", e.Number)
	}
	return p.admin(e.AdminAddress), e.Number, nil
}

// Ready implements status.Readiness: it reports whether Envoy is live and configured, and if not,
// why. Each call queries Envoy, since only Envoy knows whether it drains.
func (p *proxy) Ready() (bool, string) { return p.ready(context.Background()) }

// ready is Ready with a context.
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
		if now, still := p.liveEpoch(); !still || now.ID != e.ID || now.AdminLost ||
			now.State == epoch.HandingOver {
			// The old admin interface closes when the new epoch starts, but the old listeners
			// continue serving.
			return still, "an epoch is being replaced"
		}
		return false, fmt.Sprintf("epoch %d does not say whether it is ready: %v", e.Number, err)
	case !ready:
		return false, fmt.Sprintf("epoch %d is %s", e.Number, state)
	}
	return true, ""
}

// readyUnasked reports whether the live epoch is ready where the supervisor knows it without a
// request to Envoy. A drain takes precedence, even if Envoy could not be notified. An epoch whose
// listeners may have closed is not ready; its admin interface does not show that.
func readyUnasked(e epoch.Epoch) (ready bool, reason string, known bool) {
	switch {
	case e.Drained:
		return false, fmt.Sprintf("epoch %d drains on request; outrider undrain ends the drain",
			e.Number), true
	case e.MayRefuse:
		return false,
			fmt.Sprintf(
				"epoch %d may have closed its listeners for an epoch that then died; it is being replaced", e.Number), true
	case e.AdminLost:
		return true, "", true // its data plane serves
	case e.Silent:
		return false, fmt.Sprintf("epoch %d lives, but its admin interface does not answer",
			e.Number), true
	}
	return false, "", false
}

// notLive returns why no epoch is live.
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
		return fmt.Sprintf("epoch %d has ended (%s) and no other is live yet", last.Number,
			last.ExitCause)
	}
	return "no epoch was started yet"
}

// waitReady returns nil once the proxy is ready, or an error with the reason when ctx ends. It
// calls progress whenever the reason changes.
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
