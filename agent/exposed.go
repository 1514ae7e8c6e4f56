package agent

import (
	"net"
	"os"
	"slices"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/exposure"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/sockdiag"
)

// newExposure returns the checker for applications that other hosts can reach without the required
// mutual TLS.
func newExposure(b *base, c *config.Config, state *reloadState, e *epochParts, m *meshPolicy,
	rules *capture.Controller, listeners <-chan struct{},
) *exposure.Checker {
	own, inbound := capture.AgentPorts(c), c.InboundPorts()
	return exposure.New(exposure.Options{
		Policy: func() exposure.MutualTLSPolicy { return m.inForce(state) },
		Rules:  rules, ListenersACKed: listeners,
		Conditions:    b.board,
		EpochsChanged: e.supervisor.Changed,
		IsCaptured: func(port uint16) bool {
			return c.Capture.Mode != "none" && (inbound.All || slices.Contains(inbound.List, int(port)))
		},
		ExclusionReason: func(port uint16) string {
			switch {
			case slices.Contains(own, port):
				return "port of Outrider"
			case slices.Contains(c.Capture.ExcludeInboundPorts, int(port)):
				return "capture.exclude_inbound_ports"
			}
			return ""
		},
		IsEnvoySocket: func(s sockdiag.Socket) bool {
			return ofOutrider(s, b.options.Config.RunsInUnit, e.link, m.tracker)
		},
	})
}

// meshPolicy is the policy of the mesh for mutual TLS.
type meshPolicy struct {
	relay     *relay.Server
	discovery *discovery.Server
	tracker   *ports.PortTracker
}

// inForce returns the policy for this host's ports, nil while it is not known.
func (m *meshPolicy) inForce(state *reloadState) exposure.MutualTLSPolicy {
	if len(state.InForce().Config.Discovery.Addresses) > 0 {
		return m.relay.StrictMTLSPorts()
	}
	node := m.tracker.LastAcceptingNode()
	if node == nil {
		return nil
	}
	policy, err := m.discovery.StrictMTLSPorts(node)
	if err != nil {
		return nil // discovery cannot translate for Envoy, which then has no listener with a policy
	}
	return policy
}

// ofOutrider reports whether a socket belongs to Envoy or an agent, according to the socket's user.
// For an agent in the foreground, whose user may also run applications, it compares the address
// with those of the mesh's listeners instead.
func ofOutrider(
	s sockdiag.Socket, inUnit bool, link *epoch.KeeperLink, tracker *ports.PortTracker,
) bool {
	port := s.Address.Port()
	if port == capture.InboundPort || port == capture.OutboundPort {
		return true
	}
	if inUnit {
		keeper := link.Connection()
		return s.UID == uint32(os.Geteuid()) || keeper != nil && s.UID == uint32(keeper.Info().UID)
	}
	at := s.Address.Addr().Unmap()
	for _, claim := range tracker.Claims() {
		if claim.Port != int(port) {
			continue
		}
		host := net.ParseIP(claim.Host)
		if host.Equal(at.AsSlice()) || host.IsUnspecified() && at.IsUnspecified() {
			return true
		}
	}
	return false
}
