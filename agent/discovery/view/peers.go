package view

import (
	"fmt"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// authenticate applies the PeerAuthentications to the port and returns the mode that counts.
func (d *inboundPort) authenticate(peers model.PeerPolicy,
	node model.Node) (model.PeerMode, []object.Problem) {
	mode := peers.Of(d.Port)
	d.Mutual, d.Identity = mode.Mode, node.Identity
	var problems []object.Problem
	if d.TLS != nil && mode.Object != nil && mode.Mode != model.Disable {
		problems = append(problems, d.object.Problem(object.Finding{Field: d.field + ".tls",
			Severity: condition.Warning,
			Message: fmt.Sprintf("has no effect: %s at %s:%d sets mutual TLS %s for port %d",
				mode.Object.Key, mode.Object.File, mode.Object.Line, mode.Mode, d.Port),
			Cure: fmt.Sprintf("set DISABLE for port %d in its portLevelMtls", d.Port)}))
		d.Protocol, d.TLS = d.Terminated(), nil
	}
	if d.Closed() {
		problems = append(problems, mode.Object.Problem(object.Finding{Field: mode.Field,
			Severity: condition.Error,
			Message: fmt.Sprintf("port %d accepts no connections: STRICT needs a certificate of "+
				"the mesh, and this proxy has no identity", d.Port),
			Cure: "set provider in [identity], or write PERMISSIVE or DISABLE"}))
	}
	return mode, problems
}

// shadowedPeers reports PeerAuthentications without effect.
func shadowedPeers(peers model.PeerPolicy) []object.Problem {
	var problems []object.Problem
	for _, s := range peers.Shadowed {
		problems = append(problems, s.Object.Problem(object.Finding{Severity: condition.Warning,
			Message: fmt.Sprintf("has no effect: %s at %s:%d is for the same, is older and takes "+
				"precedence", s.By.Key, s.By.File, s.By.Line),
			Cure: "remove one, or select other workloads"}))
	}
	return problems
}
