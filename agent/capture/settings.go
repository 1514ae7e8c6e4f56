package capture

import (
	"net"
	"net/netip"
	"strconv"
	"time"

	"outrider.org/outrider/agent/config"
)

// Settings define what to capture. The agent sends them to outrider-capture, which reads no
// configuration and validates them. They contain no rule text.
//
// The two programs may have different versions, so a field must keep its JSON name and meaning.
type Settings struct {
	Instance string `json:"instance,omitempty"`
	// Inbound are the ports of this host to capture; nil: none.
	Inbound        Ports    `json:"inbound"`
	ExcludeInbound []uint16 `json:"exclude_inbound,omitempty"`
	// Outbound are the networks to capture; 0.0.0.0/0 and ::/0 mean all.
	Outbound             []netip.Prefix `json:"outbound,omitempty"`
	ExcludeOutbound      []netip.Prefix `json:"exclude_outbound,omitempty"`
	ExcludeOutboundPorts []uint16       `json:"exclude_outbound_ports,omitempty"`
	// AgentPorts are inbound ports of Envoy and the agent, which are never captured.
	AgentPorts []uint16 `json:"own_ports,omitempty"`
	// DNSPort is 15053 if queries to the resolvers of /etc/resolv.conf are redirected to the
	// agent's DNS proxy, else 0.
	DNSPort uint16 `json:"dns_port,omitempty"`
	// Units restricts outbound capture to processes of these systemd units; none: no restriction.
	Units        []string `json:"units,omitempty"`
	ExcludeUnits []string `json:"exclude_units,omitempty"`
	// PreserveClientAddress preserves the client's address in inbound connections.
	PreserveClientAddress bool `json:"transparent,omitempty"`
	// FailOutboundClosed rejects outbound connections that cannot be captured because Envoy does
	// not serve. FailInboundClosed rejects inbound connections that cannot be captured because
	// Envoy does not serve or does not serve their address family.
	FailOutboundClosed bool `json:"fail_closed,omitempty"`
	FailInboundClosed  bool `json:"inbound_closed,omitempty"`
	// InboundOnly captures neither outbound connections nor queries, because Envoy drains or has
	// not served yet. It is not a key of [capture], and a change of it starts no trial.
	InboundOnly bool `json:"inbound_only,omitempty"`
	// TrialDuration is the time after which new settings expire unless confirmed; 0: they do not
	// expire.
	TrialDuration time.Duration `json:"trial,omitempty"`
}

// Ports is a set of ports.
type Ports struct {
	All  bool     `json:"all,omitempty"`
	List []uint16 `json:"list,omitempty"`
}

func (p Ports) any() bool { return p.All || len(p.List) > 0 }

// outbound returns the networks to which connections are captured: none with InboundOnly.
func (s *Settings) outbound() []netip.Prefix {
	if s.InboundOnly {
		return nil
	}
	return s.Outbound
}

// dnsPort returns DNSPort, or 0 with InboundOnly.
func (s *Settings) dnsPort() uint16 {
	if s.InboundOnly {
		return 0
	}
	return s.DNSPort
}

// closesOutbound reports whether outbound connections are rejected instead of going direct.
func (s *Settings) closesOutbound() bool { return s.FailOutboundClosed && !s.InboundOnly }

// RejectsInboundOnFailure reports whether inbound connections are rejected instead of going direct.
func (s *Settings) RejectsInboundOnFailure() bool { return s.FailInboundClosed && s.Inbound.any() }

// NewSettings returns the settings of an instance's configuration, nil if nothing is captured.
func NewSettings(c *config.Config, instance string) *Settings {
	if c.Capture.Mode == "none" {
		return nil
	}
	inbound := c.InboundPorts()
	s := &Settings{Instance: instance,
		Inbound: Ports{All: inbound.All,
			List: portNumbers(inbound.List)},
		ExcludeInbound:        portNumbers(c.Capture.ExcludeInboundPorts),
		Outbound:              networks(c.Capture.OutboundCIDRs),
		ExcludeOutbound:       networks(c.Capture.ExcludeOutboundCIDRs),
		ExcludeOutboundPorts:  portNumbers(c.Capture.ExcludeOutboundPorts),
		PreserveClientAddress: c.Capture.Mode == "tproxy",
		FailOutboundClosed:    c.Capture.Fail == "closed",
		FailInboundClosed:     c.RejectsInboundOnFailure(),
		TrialDuration:         c.Capture.TrialDuration,
		Units:                 c.Capture.Units,
		ExcludeUnits:          c.Capture.ExcludeUnits,
	}
	if c.Capture.DNS {
		s.DNSPort = portOf(c.DNS.Listen)
	}
	s.AgentPorts = AgentPorts(c)
	return s
}

// AgentPorts returns the inbound ports of the agent, and of Envoy's listeners for the agent.
func AgentPorts(c *config.Config) (ports []uint16) {
	for _, address := range []string{c.Status.Address, c.Status.ReadyAddress(),
		c.Telemetry.PrometheusAddress} {
		if port := portOf(address); port > 0 {
			ports = append(ports, port)
		}
	}
	return ports
}

// portOf returns the port of an address, 0 if the address is "".
func portOf(address string) uint16 {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

func portNumbers(ports []int) []uint16 {
	var all []uint16
	for _, p := range ports {
		all = append(all, uint16(p))
	}
	return all
}

// networks parses texts that are already validated: "*", networks and addresses.
func networks(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if text == "*" {
			return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
				netip.MustParsePrefix("::/0")}
		}
		if network, err := netip.ParsePrefix(text); err == nil {
			all = append(all, network.Masked())
		} else if address, err := netip.ParseAddr(text); err == nil {
			all = append(all, netip.PrefixFrom(address, address.BitLen()))
		}
	}
	return all
}
