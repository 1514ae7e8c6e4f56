package status

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch/record"
)

// conditionViewYields is active while Envoy's own admin interface occupies the view's port.
const conditionViewYields = "admin-view-yields"

// Epochs lists the epochs. Changed returns a channel that is closed at the next change.
type Epochs interface {
	Epochs() []record.Epoch
	Changed() <-chan struct{}
}

// YieldPort makes the view stop listening if its port conflicts with the admin address of the epoch
// that a reload requests, until ReclaimPort is called for the reload. The port is free when
// YieldPort returns.
func (v *AdminView) YieldPort(reload uint64, address string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held[reload] = address
	v.update()
}

// ReclaimPort undoes YieldPort of a reload: the view binds its port again unless an epoch uses it.
func (v *AdminView) ReclaimPort(reload uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.held, reload)
	v.wakeUp()
}

// update compares the view's port with the admin addresses of the epochs, which a custom bootstrap
// may set. The view stops listening before an epoch with the same address starts, and resumes once
// an epoch with another address is live. While no epoch is live, the address of the last one
// remains reserved, because that epoch may be started again at any time. Callers hold mu.
func (v *AdminView) update() {
	var live, starting *record.Epoch
	for _, e := range v.options.Epochs.Epochs() {
		switch {
		case e.State.Serves():
			live = &e
		case e.State == record.StateStarting:
			starting = &e
		}
	}
	switch {
	case live != nil:
		v.last = live.AdminAddress
	case starting != nil:
		v.last = starting.AdminAddress
	}
	v.reserved = []string{v.last}
	if starting != nil {
		v.reserved = append(v.reserved, starting.AdminAddress)
	}
	for _, address := range v.held {
		v.reserved = append(v.reserved, address)
	}
	switch to := v.yieldsTo(v.port); to {
	case "":
		v.options.Conditions.Clear(conditionViewYields)
	case v.last:
		v.options.Conditions.Raise(conditionViewYields, condition.Info, fmt.Sprintf(
			"The bootstrap has Envoy's own admin interface on %s: there is no view of it on "+
				"[envoy] admin_port, and every local user may change Envoy there.", to))
		fallthrough
	default:
		v.close()
		v.options.Conditions.Clear(conditionView)
	}
}

// wakeUp makes Run update the view.
func (v *AdminView) wakeUp() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// yieldsTo returns Envoy's address that conflicts with a port of the view, or "". Callers hold mu.
func (v *AdminView) yieldsTo(port int) string {
	if own := viewAddress(port); port != 0 && slices.Contains(v.reserved, own) {
		return own
	}
	return ""
}
