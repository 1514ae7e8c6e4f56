package view

import (
	"fmt"
	"net/netip"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// taken is who has an address and port before all services, "" if nobody: what a Sidecar lets come in there, whatever its
// age, since it is meant for this machine and services are meant for all; and where captured connections arrive.
func (s *sidecar) taken(v *View, address string, number uint32) string {
	if d, ok := s.inbound.own[number]; ok && sameAddress(d.Bind, address) {
		return fmt.Sprintf("%s of %s at %s:%d", d.field, d.object.Key, d.object.File, d.object.Line)
	}
	if v.node.Captured() && isAny(address) && slices.Contains([]uint32{v.world.Mesh().OutboundPort, v.world.Mesh().InboundPort}, number) {
		return "the proxy itself, which takes captured connections there"
	}
	return ""
}

// crowdedOut tells all members of a lane that somebody else has their place.
func (l lane) crowdedOut(number uint32, by string) []object.Problem {
	var problems []object.Problem
	for _, m := range l.members {
		problems = append(problems, portProblem(m, fmt.Sprintf("nothing listens for host %s: %s:%d belongs to %s", m.service.Host, l.address, number, by),
			"give the service another port"))
	}
	return problems
}

// isReserved tells whether a door is where captured connections arrive: there can be no other there.
func (d door) isReserved(v *View) bool {
	return v.node.Captured() && (d.Port == v.world.Mesh().InboundPort || d.Port == v.world.Mesh().OutboundPort && isAny(d.Bind))
}

func (d door) reserved() object.Problem {
	return d.object.Problem(object.Finding{Field: d.field, Severity: condition.Warning,
		Message: fmt.Sprintf("port %d is the proxy's own, which takes captured connections there: nothing else comes in by it", d.Port), Cure: "let the application listen on another port"})
}

func isAny(address string) bool {
	parsed, err := netip.ParseAddr(address)
	return err == nil && parsed.IsUnspecified()
}

// sameAddress tells whether two texts are one address, which IPv6 lets be written in many ways.
func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, other := netip.ParseAddr(b)
	return err == nil && other == nil && x == y
}
