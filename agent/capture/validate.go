package capture

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
)

// Limits of Settings.
const (
	maxPorts    = 4096
	maxNetworks = 4096
	maxUnits    = 256
)

// unitNameMax bounds the length of a unit's name: systemd's UNIT_NAME_MAX less the closing zero.
const unitNameMax = 255

var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.(service|scope|slice)$`)

// instanceName matches valid instance names, like the pattern of package config.
var instanceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// Validate returns an error that names the first invalid setting.
func (s *Settings) Validate() error {
	if s.Instance != "" && !instanceName.MatchString(s.Instance) {
		return fmt.Errorf("instance %q: invalid name", s.Instance)
	}
	if s.DNSPort != 0 && s.DNSPort != dnsPort {
		return fmt.Errorf("dns_port %d; only %d is allowed", s.DNSPort, dnsPort)
	}
	if s.TrialDuration < 0 {
		return fmt.Errorf("trial %v is negative", s.TrialDuration)
	}
	for name, ports := range map[string][]uint16{"inbound": s.Inbound.List,
		"exclude_inbound": s.ExcludeInbound, "exclude_outbound_ports": s.ExcludeOutboundPorts,
		"own_ports": s.AgentPorts} {
		if len(ports) > maxPorts {
			return fmt.Errorf("%s: %d ports; at most %d", name, len(ports), maxPorts)
		}
		if slices.Contains(ports, 0) {
			return fmt.Errorf("%s: port 0 is invalid", name)
		}
	}
	for name, networks := range map[string][]netip.Prefix{"outbound": s.Outbound,
		"exclude_outbound": s.ExcludeOutbound} {
		if len(networks) > maxNetworks {
			return fmt.Errorf("%s: %d networks; at most %d", name, len(networks), maxNetworks)
		}
		for _, n := range networks {
			if !n.IsValid() || n.Addr().Is4In6() {
				return fmt.Errorf("%s: invalid network %v", name, n)
			}
		}
	}
	for name, units := range map[string][]string{"units": s.Units,
		"exclude_units": s.ExcludeUnits} {
		if len(units) > maxUnits {
			return fmt.Errorf("%s: %d units; at most %d", name, len(units), maxUnits)
		}
		for _, u := range units {
			if len(u) > unitNameMax || !unitName.MatchString(u) {
				return fmt.Errorf("%s: unit %q is neither a service, a scope nor a slice", name, u)
			}
		}
	}
	return nil
}

// upgrade converts settings of an earlier protocol version to their current meaning.
func (s *Settings) upgrade(protocol int) {
	if protocol < 2 {
		s.FailInboundClosed = s.FailOutboundClosed
	}
}
