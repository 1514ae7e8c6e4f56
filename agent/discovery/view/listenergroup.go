package view

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// bindAddress is the address of an outbound listener.
type bindAddress struct {
	address  string // IP address; "": the port has no listener
	captured bool   // the listener is for captured connections and not bound
}

// isReachable reports whether remote hosts may reach the listener.
func (at bindAddress) isReachable() bool {
	address, err := netip.ParseAddr(at.address)
	return err == nil && !at.captured && !address.IsLoopback()
}

// bindAddress returns the address of a port's listener: that in the Sidecar, else the loopback, or
// with interception every address.
func (s *sidecar) bindAddress(v *ProxyView, number uint32) (bindAddress, []object.Problem) {
	e := s.scope.EgressListener(number)
	if e == nil {
		return bindAddress{}, nil
	}
	at := bindAddress{captured: v.node.IsIntercepted()}
	switch e.Spec.GetCaptureMode() {
	case networking.CaptureMode_NONE:
		at.captured = false
	case networking.CaptureMode_IPTABLES:
		if !at.captured {
			return bindAddress{},
				[]object.Problem{
					s.scope.Object.Warning(fmt.Sprintf("egress[%d].captureMode", e.Index),
						"IPTABLES needs interception, which this proxy does "+
							"without: nothing listens", "write NONE")}
		}
	}
	at.address = loopback
	if at.captured {
		at.address = anyAddress
	}
	at.address = cmp.Or(e.Spec.GetBind(), at.address)
	return at, nil
}

// unresolved returns a problem if a listener blocks requests to unknown hosts although the outbound
// policy is ALLOW_ANY_DYNAMIC_DNS, which resolves them with DNS. The listener blocks them because
// remote hosts can reach it: with the policy, they could reach local ports through it, and inbound
// policies would not apply to these connections.
func (s *sidecar) unresolved(v *ProxyView, at bindAddress, number uint32) []object.Problem {
	e := s.scope.EgressListener(number)
	if e == nil || !s.scope.OutboundPolicy(v.world).DynamicDNS || !at.isReachable() {
		return nil
	}
	return []object.Problem{s.scope.Object.Warning(fmt.Sprintf("egress[%d].bind", e.Index), fmt.Sprintf(
		"requests to unknown hosts are blocked at %s:%d: ALLOW_ANY_DYNAMIC_DNS would let remote hosts "+
			"reach ports of this host", at.address, number), "write bind: 127.0.0.1")}
}

// listenerGroup holds the services that share one listener of a port, the oldest one first.
type listenerGroup struct {
	bindAddress
	members []member
}

// groups distributes the members of a port among listeners by address. Members without an address
// of their own share the listener at the common address at.
func (p *port) groups(at bindAddress) []listenerGroup {
	members := slices.SortedFunc(maps.Values(p.members), func(a, b member) int {
		if a.older(b) {
			return -1
		}
		return 1
	})
	byAddress := map[string][]member{}
	for _, m := range members {
		addresses := m.addresses(at.captured)
		if len(addresses) == 0 || len(m.blocks(at)) > 0 && !slices.Contains(addresses, at.address) {
			addresses = append(addresses, at.address)
		}
		for _, address := range addresses {
			byAddress[address] = append(byAddress[address], m)
		}
	}
	var groups []listenerGroup
	for _, address := range slices.Sorted(maps.Keys(byAddress)) {
		groups = append(groups, listenerGroup{bindAddress: bindAddress{address, at.captured},
			members: byAddress[address]})
	}
	return groups
}

// addresses returns the destination addresses by which captured connections to a member are
// recognized. HTTP services without addresses need none, because requests contain the host.
func (m member) addresses(captured bool) []string {
	if !captured || m.port.Protocol.IsHTTP() {
		return nil
	}
	var found []string
	for _, text := range m.port.Entry.Addresses {
		if address, err := netip.ParseAddr(text); err == nil &&
			!slices.Contains(found, address.String()) {
			found = append(found, address.String())
		}
	}
	return found
}

// blocks returns the CIDR blocks by which captured connections to a member are matched on the
// listener for the common address.
func (m member) blocks(at bindAddress) []netip.Prefix {
	if !at.captured || m.port.Protocol.IsHTTP() || slices.Contains(m.addresses(at.captured),
		at.address) {
		return nil
	}
	var found []netip.Prefix
	for _, text := range m.port.Entry.Addresses {
		if block, err := netip.ParsePrefix(text); err == nil {
			found = append(found, block.Masked())
		}
	}
	return found
}

// within restricts routes that match any address to the CIDR blocks.
func within(routes []translate.ConnectionRoute, blocks []netip.Prefix) []translate.ConnectionRoute {
	if len(blocks) == 0 {
		return routes
	}
	out := slices.Clone(routes)
	for i := range out {
		if len(out[i].Subnets) == 0 {
			out[i].Subnets = blocks
		}
	}
	return out
}
