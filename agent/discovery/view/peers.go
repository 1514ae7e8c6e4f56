package view

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// authenticate applies the PeerAuthentications to the port, and returns the mode of mutual TLS in
// effect.
func (d *inboundPort) authenticate(peers model.EffectivePeerAuthentication,
	node model.Node) (model.MutualTLSSetting, []object.Problem) {
	mode := peers.PortMode(d.Port)
	d.peer, d.MutualTLSMode, d.HasMeshIdentity = mode, mode.Mode, node.Identity
	var problems []object.Problem
	if d.TLS != nil && mode.Object != nil && mode.Mode != model.Disable {
		problems = append(problems, d.object.Warning(d.field+".tls",
			fmt.Sprintf("has no effect: %s at %s sets mutual TLS %s for port %d",
				mode.Object.Key, mode.Object.Position(), mode.Mode, d.Port),
			fmt.Sprintf("set DISABLE for port %d in its portLevelMtls", d.Port)))
		d.Protocol, d.TLS = d.ProtocolInsideTLS(), nil
	}
	if d.RefusesAllConnections() {
		problems = append(problems, mode.Object.NewProblem(object.Finding{Field: mode.Field,
			Severity: condition.Error,
			Message: fmt.Sprintf("port %d accepts no connections: STRICT needs a certificate of "+
				"the mesh, and this proxy has no identity", d.Port),
			Fix: "set provider in [identity], or write PERMISSIVE or DISABLE"}))
	}
	return mode, problems
}

// ExposedPortProblems returns a problem for each application that clients can reach in spite of
// required mutual TLS, because it listens on an address other than the loopback (as in listening)
// and connections to it are not redirected to Envoy.
func (v *ProxyView) ExposedPortProblems(listening []netip.AddrPort) []object.Problem {
	s, ok := v.kind.(*sidecar)
	if !ok || v.node.IsIntercepted() {
		return nil
	}
	var problems []object.Problem
	for _, d := range s.inbound.own {
		endpoint, err := netip.ParseAddrPort(d.Endpoint)
		if d.MutualTLSMode != model.Strict || err != nil {
			continue
		}
		for _, at := range listening {
			if at.Port() == endpoint.Port() && !at.Addr().IsLoopback() &&
				!(uint32(at.Port()) == d.Port && mesh.SameAddress(at.Addr().String(), d.Bind)) {
				problems = append(problems, d.object.NewProblem(object.Finding{
					Field: d.field + ".defaultEndpoint", Severity: condition.Error,
					Message: fmt.Sprintf("the application listens on %s, where clients reach it "+
						"without the mutual TLS that %s at %s requires", at, d.peer.Object.Key,
						d.peer.Object.Position()),
					Fix: `let it listen on 127.0.0.1, or set mode = "redirect" in [capture]`}))
				break
			}
		}
	}
	return problems
}

// StrictMTLSPorts returns a function that, for a TCP port of the proxy's host, reports whether
// mutual TLS is required (strict), by which object (policy), and whether the port is one of the
// proxy (ownPort): of its Sidecar's ingress, or of a service with an endpoint on the host. It
// returns nil if no port requires mutual TLS.
func (v *ProxyView) StrictMTLSPorts() func(port uint16) (policy resource.Origin, strict, ownPort bool) {
	s, ok := v.kind.(*sidecar)
	if !ok || s.scope == nil {
		return nil
	}
	policy := v.world.EffectivePeerAuthentication(v.node)
	own := map[uint16]model.MutualTLSSetting{}
	ports, _ := s.inbound.ports(v, s.scope)
	for _, d := range ports {
		mode := policy.PortMode(d.Port)
		own[uint16(d.Port)] = mode
		endpoint, err := netip.ParseAddrPort(d.Endpoint)
		if err == nil && own[endpoint.Port()].Mode != model.Strict {
			own[endpoint.Port()] = mode
		}
	}
	strict := policy.Default.Mode == model.Strict
	for _, modes := range []iter.Seq[model.MutualTLSSetting]{maps.Values(policy.Ports),
		maps.Values(own)} {
		for mode := range modes {
			strict = strict || mode.Mode == model.Strict
		}
	}
	if !strict {
		return nil
	}
	return func(port uint16) (by resource.Origin, strict, isOwn bool) {
		mode, isOwn := own[port]
		if !isOwn {
			mode = policy.PortMode(uint32(port))
		}
		if mode.Mode != model.Strict {
			return by, false, isOwn
		}
		return mode.Object.Origin(), true, isOwn
	}
}

// shadowedPeers reports PeerAuthentications that have no effect.
func shadowedPeers(peers model.EffectivePeerAuthentication) []object.Problem {
	var problems []object.Problem
	for _, s := range peers.Shadowed {
		problems = append(problems, s.Object.Warning("",
			fmt.Sprintf("has no effect: %s at %s is for the same, is older and takes "+
				"precedence", s.Winner.Key, s.Winner.Position()), "remove one, or select other workloads"))
	}
	return problems
}
