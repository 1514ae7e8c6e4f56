package exposure

import (
	"cmp"
	"net/netip"
	"slices"

	"outrider.org/outrider/agent/sockdiag"
)

// PreInterceptionConnections counts the connections from another host to an application that were
// established before the interception rules were in force. They bypass Envoy until they end.
type PreInterceptionConnections struct {
	Port  uint16
	Peer  netip.Addr
	Count int
}

// PreInterceptionConnections returns the connections that bypass the required mutual TLS, by port
// and peer.
func (c *Checker) PreInterceptionConnections() []PreInterceptionConnections {
	c.counting.Lock()
	defer c.counting.Unlock()
	policy := c.Policy()
	if policy == nil {
		return nil
	}
	listening, err := sockdiag.ListeningSockets()
	if err != nil {
		return nil
	}
	ports := map[uint16]bool{}
	for _, s := range listening {
		if _, counts := c.counts(policy, s); counts && !c.IsEnvoySocket(s) &&
			c.ExclusionReason(s.Address.Port()) == "" {
			ports[s.Address.Port()] = true
		}
	}
	if len(ports) == 0 {
		return nil
	}
	var all []sockdiag.Socket
	if err := sockdiag.EachSocket(sockdiag.TCP, func(s sockdiag.Socket) { all = append(all, s) },
		sockdiag.Established); err != nil {
		return nil
	}
	return c.older(ports, all)
}

// older counts the connections to ports, for PreInterceptionConnections. It skips those whose other
// end is a socket of this host, because they come from Envoy or a local client, and those of
// Envoy's sockets.
func (c *Checker) older(ports map[uint16]bool,
	connections []sockdiag.Socket) []PreInterceptionConnections {
	type ends struct{ local, peer netip.AddrPort }
	connected := map[ends]bool{}
	for _, s := range connections {
		connected[ends{unmap(s.Address), unmap(s.Peer)}] = true
	}
	type key struct {
		port uint16
		peer netip.Addr
	}
	counts := map[key]int{}
	for _, s := range connections {
		local, peer := unmap(s.Address), unmap(s.Peer)
		if ports[local.Port()] && !local.Addr().IsLoopback() && !connected[ends{peer, local}] &&
			!c.IsEnvoySocket(s) {
			counts[key{local.Port(), peer.Addr()}]++
		}
	}
	var found []PreInterceptionConnections
	for k, n := range counts {
		found = append(found, PreInterceptionConnections{k.port, k.peer, n})
	}
	slices.SortFunc(found, func(a, b PreInterceptionConnections) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(b.Count, a.Count), a.Peer.Compare(b.Peer))
	})
	return found
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
