package agent

import (
	"net"
	"os"
	"slices"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/exposure"
	"outrider.org/outrider/agent/sockdiag"
)

// newExposure returns the part that looks for applications that are reachable past mutual TLS.
func (a *Agent) newExposure(c *config.Config) *exposure.Checker {
	excluded, own := portNumbers(c.Capture.ExcludeInboundPorts), ownPorts(c)
	inbound, list := c.InboundPorts(), portNumbers(c.InboundPorts().List)
	return exposure.New(exposure.Options{
		Policy: a.peerPolicy, Rules: a.capture, Board: a.board,
		Epochs: func() <-chan struct{} { return a.proxy.Changed() },
		Captures: func(port uint16) bool {
			return c.Capture.Mode != "none" && (inbound.All || slices.Contains(list, port))
		},
		Excluded: func(port uint16) string {
			switch {
			case slices.Contains(own, port):
				return "port of Outrider"
			case slices.Contains(excluded, port):
				return "capture.exclude_inbound_ports"
			}
			return ""
		},
		Envoy: a.ofOutrider,
	})
}

// peerPolicy returns the policy for mutual TLS of this host's ports, nil while it is not known.
func (a *Agent) peerPolicy() exposure.Policy {
	if a.reloader.InForce().Config.Discovery.Address != "" {
		return a.relay.Strict()
	}
	node := a.meshPorts.LastNode()
	if node == nil {
		return nil
	}
	policy, err := a.discovery.Strict(node)
	if err != nil {
		return nil // Envoy receives nothing, either
	}
	return policy
}

// ofOutrider reports whether a socket is one of Envoy or of an agent: by its user, in the foreground,
// where applications may have the same one, by the addresses of the mesh's listeners.
func (a *Agent) ofOutrider(s sockdiag.Socket) bool {
	port := s.Address.Port()
	if port == capture.InboundPort || port == capture.OutboundPort {
		return true
	}
	if a.options.Config.InUnit {
		keeper := a.keeper.Get()
		return s.UID == uint32(os.Geteuid()) || keeper != nil && s.UID == uint32(keeper.Info().UID)
	}
	at := s.Address.Addr().Unmap()
	for _, claim := range a.meshPorts.Claims() {
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
