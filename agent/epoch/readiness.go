package epoch

import (
	"fmt"
)

// proxyState has everything that determines the readiness of a proxy with a live epoch. Conditions
// that are not part of it do not affect readiness: despite them, a load balancer should send
// requests.
type proxyState struct {
	epoch Epoch
	mesh  string // why the mesh configuration makes the proxy not ready; see NewProxy

	// Envoy's answer to a readiness request; only set if needsAnswer(epoch)
	ready bool
	says  string // the state that Envoy reports if ready is false
	err   error  // why Envoy did not answer
	// replaced reports that another epoch has replaced epoch or is about to. gone reports that, in
	// addition, no epoch serves.
	replaced, gone bool
}

// needsAnswer reports whether readiness depends on Envoy's answer. It does not if the supervisor
// already knows the result.
func needsAnswer(e Epoch) bool {
	return !e.DrainRequested && !e.ListenersMaybeClosed && !e.AdminLost && !e.AdminUnresponsive
}

// readiness reports whether the proxy is ready: Envoy serves, has the mesh configuration, and
// enforces all its policies. If it is not ready, reason says why. A requested drain makes it not
// ready even if Envoy could not be notified of the drain.
func (s proxyState) readiness() (ready bool, reason string) {
	e := s.epoch
	switch {
	case s.mesh != "":
		return false, s.mesh
	case e.DrainRequested:
		return false, fmt.Sprintf("epoch %d drains on request; outrider undrain ends the drain",
			e.Number)
	case e.ListenersMaybeClosed: // the listeners may be closed, which the admin interface does not show
		return false, fmt.Sprintf("epoch %d may have closed its listeners for an epoch that then died; "+
			"it is being replaced", e.Number)
	case e.AdminLost:
		return true, "" // without admin interface the listeners still serve
	case e.AdminUnresponsive:
		return false, fmt.Sprintf("epoch %d lives, but its admin interface does not answer",
			e.Number)
	case s.err != nil && s.replaced:
		// The old epoch's admin interface closes when the new epoch starts; the old epoch's
		// listeners continue to serve.
		return !s.gone, "an epoch is being replaced"
	case s.err != nil:
		return false, fmt.Sprintf("epoch %d does not say whether it is ready: %v", e.Number, s.err)
	case !s.ready:
		return false, fmt.Sprintf("epoch %d is %s", e.Number, s.says)
	}
	return true, ""
}
