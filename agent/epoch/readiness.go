package epoch

import (
	"fmt"
)

// proxyState has everything that determines the readiness of a proxy with a live epoch. Other
// faults are conditions that do not affect readiness: a load balancer should still send requests.
type proxyState struct {
	epoch Epoch
	mesh  string // reason of the mesh configuration why the proxy is not ready; see NewProxy

	// Envoy's answer, if needsAnswer(epoch).
	ready bool
	says  string // the state that Envoy reports if ready is false
	err   error  // Envoy did not answer
	// replaced reports that another epoch has replaced this one or is about to; gone that, in
	// addition, none serves.
	replaced, gone bool
}

// needsAnswer reports whether readiness depends on Envoy's answer, because the supervisor does not
// know it.
func needsAnswer(e Epoch) bool { return !e.Drained && !e.MayRefuse && !e.AdminLost && !e.Silent }

// readiness reports whether the proxy is ready: Envoy serves, has the mesh configuration, and
// enforces all its policies. If not, reason says why. A drain takes precedence over other reasons,
// even if Envoy could not be notified of it.
func (s proxyState) readiness() (ready bool, reason string) {
	e := s.epoch
	switch {
	case s.mesh != "":
		return false, s.mesh
	case e.Drained:
		return false, fmt.Sprintf("epoch %d drains on request; outrider undrain ends the drain",
			e.Number)
	case e.MayRefuse: // its admin interface does not show that the listeners are closed
		return false, fmt.Sprintf("epoch %d may have closed its listeners for an epoch that then died; "+
			"it is being replaced", e.Number)
	case e.AdminLost:
		return true, "" // its data plane serves
	case e.Silent:
		return false, fmt.Sprintf("epoch %d lives, but its admin interface does not answer",
			e.Number)
	case s.err != nil && s.replaced:
		// The old epoch's admin interface closes when the new epoch starts, but its listeners
		// continue to serve.
		return !s.gone, "an epoch is being replaced"
	case s.err != nil:
		return false, fmt.Sprintf("epoch %d does not say whether it is ready: %v", e.Number, s.err)
	case !s.ready:
		return false, fmt.Sprintf("epoch %d is %s", e.Number, s.says)
	}
	return true, ""
}
