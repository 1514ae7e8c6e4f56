package epoch

import (
	"fmt"
)

// proxyState is everything that the readiness of a proxy with a live epoch depends on. Other faults
// are conditions of a proxy that is ready, and that a load balancer should send requests to.
type proxyState struct {
	epoch Epoch
	mesh  string // why the mesh configuration makes the proxy not ready; see NewProxy

	// Envoy's answer, if needsAnswer(epoch).
	ready bool
	says  string // the state that Envoy reports if it is not ready
	err   error  // Envoy did not answer
	// replaced: meanwhile another epoch has replaced it, or is about to; gone: and none serves.
	replaced, gone bool
}

// needsAnswer reports whether readiness depends on Envoy's answer: the supervisor does not know.
func needsAnswer(e Epoch) bool { return !e.Drained && !e.MayRefuse && !e.AdminLost && !e.Silent }

// readiness reports whether the proxy is ready, and if not, why: Envoy serves, it has the mesh
// configuration, and no policy of it is bypassed. A drain takes precedence, even if Envoy could not
// be notified.
func (s proxyState) readiness() (ready bool, reason string) {
	e := s.epoch
	switch {
	case s.mesh != "":
		return false, s.mesh
	case e.Drained:
		return false, fmt.Sprintf("epoch %d drains on request; outrider undrain ends the drain",
			e.Number)
	case e.MayRefuse: // its admin interface does not show that
		return false, fmt.Sprintf("epoch %d may have closed its listeners for an epoch that then died; "+
			"it is being replaced", e.Number)
	case e.AdminLost:
		return true, "" // its data plane serves
	case e.Silent:
		return false, fmt.Sprintf("epoch %d lives, but its admin interface does not answer",
			e.Number)
	case s.err != nil && s.replaced:
		// The old admin interface closes when the new epoch starts, but the old listeners
		// continue serving.
		return !s.gone, "an epoch is being replaced"
	case s.err != nil:
		return false, fmt.Sprintf("epoch %d does not say whether it is ready: %v", e.Number, s.err)
	case !s.ready:
		return false, fmt.Sprintf("epoch %d is %s", e.Number, s.says)
	}
	return true, ""
}
