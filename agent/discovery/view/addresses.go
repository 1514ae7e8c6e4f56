package view

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
)

// addressUser returns what uses an address and port: the HTTP proxy of MeshConfig, or a user that
// otherUser returns; "" if it is free. Services get no listener on an address in use.
func (s *sidecar) addressUser(v *ProxyView, at bindAddress, number uint32) string {
	for _, p := range s.proxies {
		if p.OfMesh && p.Port == number && mesh.SameAddress(at.address, loopback) {
			return "the HTTP proxy of MeshConfig (proxyHttpPort)"
		}
	}
	return s.otherUser(v, at, number)
}

// otherUser returns what uses an address and port: a Sidecar's ingress listener, a capture port, a
// listener of the agent, or one of Envoy's bootstrap.
func (s *sidecar) otherUser(v *ProxyView, at bindAddress, number uint32) string {
	address := at.address
	if d, ok := s.inbound.own[number]; ok && mesh.SameAddress(d.Bind, address) {
		return fmt.Sprintf("%s of %s at %s", d.field, d.object.Key, d.object.Position())
	}
	if v.node.IsIntercepted() && (mesh.IsUnspecified(address) || !at.captured) &&
		slices.Contains([]uint32{v.world.MeshConfig().OutboundPort,
			v.world.MeshConfig().InboundPort}, number) {
		return "the proxy itself, which takes captured connections there"
	}
	return v.world.MeshConfig().ReservedBy(address, number, at.captured)
}

// addressInUse returns a problem for every service of the group: the address of its listener is in
// use.
func (l listenerGroup) addressInUse(number uint32, by string) []object.Problem {
	var problems []object.Problem
	for _, m := range l.members {
		problems = append(problems,
			portProblem(m, fmt.Sprintf("nothing listens for host %s: %s:%d belongs to %s",
				m.service.Host, l.address, number, by),
				"give the service another port"))
	}
	return problems
}

// reserved returns a problem if a capture port, the agent or Envoy's bootstrap uses the port.
func (d inboundPort) reserved(v *ProxyView) *object.Problem {
	m, message := v.world.MeshConfig(), ""
	if v.node.IsIntercepted() && (d.Port == m.InboundPort || d.Port == m.OutboundPort &&
		mesh.IsUnspecified(d.Bind)) {
		message = fmt.Sprintf(
			"port %d is the proxy's own, which takes captured connections there: nothing else "+
				"comes in by it", d.Port)
	} else if by := m.ReservedBy(d.Bind, d.Port, false); d.Bind != "" && by != "" {
		message = fmt.Sprintf("no inbound listener on %s:%d, which belongs to %s", d.Bind, d.Port,
			by)
	}
	if message == "" {
		return nil
	}
	problem := d.object.Warning(d.field, message, "let the application listen on another port")
	return &problem
}
