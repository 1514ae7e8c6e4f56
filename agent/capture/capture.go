// Package capture redirects connections of this host to Envoy. Settings say what to capture, Rules
// turns them into a typed Table, and Explain evaluates tables for one connection. The helper
// (Command, cmd/outrider-capture) owns the table in the kernel; Client is the agent's side.
//
//	Settings -> Rules -> Table -> Table.String   nft text, for people
//	                           -> kernel.install one transaction
//	                           -> Explain  decision, rule, key
//
// The table belongs to a netlink socket of the helper: the kernel removes it when the helper ends.
// The helper installs it only while sockets of Envoy's user accept connections on OutboundPort and
// InboundPort.
package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"
)

// Ports of Envoy's listeners for captured connections, and of the DNS proxy for captured queries.
const (
	OutboundPort = 15001
	InboundPort  = 15006
	DNSPort      = 15053
)

// Limits of Settings.
const (
	maxPorts    = 4096
	maxNetworks = 4096
	maxUnits    = 256
)

// Settings say what to capture. The helper validates them; they contain no rule text.
type Settings struct {
	Instance string `json:"instance,omitempty"`
	// Inbound ports of this host; nil: none.
	Inbound        Ports    `json:"inbound"`
	ExcludeInbound []uint16 `json:"exclude_inbound,omitempty"`
	// Outbound networks; 0.0.0.0/0 and ::/0 are all.
	Outbound             []netip.Prefix `json:"outbound,omitempty"`
	ExcludeOutbound      []netip.Prefix `json:"exclude_outbound,omitempty"`
	ExcludeOutboundPorts []uint16       `json:"exclude_outbound_ports,omitempty"`
	// OwnPorts are inbound ports of Envoy and the agent, which are never captured.
	OwnPorts []uint16 `json:"own_ports,omitempty"`
	// DNSPort is 15053 if the agent's DNS proxy receives queries to the resolvers of
	// /etc/resolv.conf; 0: it does not.
	DNSPort uint16 `json:"dns_port,omitempty"`
	// Units restricts outbound capture to processes of these systemd units, if there are any.
	Units        []string `json:"units,omitempty"`
	ExcludeUnits []string `json:"exclude_units,omitempty"`
	// Transparent keeps the client's address in inbound connections.
	Transparent bool `json:"transparent,omitempty"`
	// FailClosed rejects outbound connections that would be captured while Envoy does not serve;
	// InboundClosed does so for inbound ones, also in an address family that Envoy does not serve.
	FailClosed    bool `json:"fail_closed,omitempty"`
	InboundClosed bool `json:"inbound_closed,omitempty"`
	// InboundOnly: outbound connections and queries go direct, because Envoy drains or has not
	// served yet. It does not belong to [capture] and begins no trial.
	InboundOnly bool `json:"inbound_only,omitempty"`
	// Trial is the time after which new settings end unless they are confirmed; 0: they do not end.
	Trial time.Duration `json:"trial,omitempty"`
}

// Ports is a set of ports.
type Ports struct {
	All  bool     `json:"all,omitempty"`
	List []uint16 `json:"list,omitempty"`
}

func (p Ports) any() bool { return p.All || len(p.List) > 0 }

// outbound returns the networks that are captured now.
func (s *Settings) outbound() []netip.Prefix {
	if s.InboundOnly {
		return nil
	}
	return s.Outbound
}

// dnsPort returns DNSPort if queries are captured now, else 0.
func (s *Settings) dnsPort() uint16 {
	if s.InboundOnly {
		return 0
	}
	return s.DNSPort
}

// closesOutbound reports whether outbound connections are rejected instead of going direct.
func (s *Settings) closesOutbound() bool { return s.FailClosed && !s.InboundOnly }

// ClosesInbound reports whether inbound connections are rejected instead of going direct.
func (s *Settings) ClosesInbound() bool { return s.InboundClosed && s.Inbound.any() }

// Users are those whose connections are never captured as outbound ones. They are arguments of the
// helper, not settings: the agent cannot choose whose listener receives connections.
type Users struct {
	Envoy uint32 `json:"envoy"`
	Agent uint32 `json:"agent"`
}

// unitNameMax bounds the length of a unit's name: systemd's UNIT_NAME_MAX less the closing zero.
const unitNameMax = 255

var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.(service|scope|slice)$`)

// instanceName is that of package config.
var instanceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// Validate returns an error that names the first invalid setting.
func (s *Settings) Validate() error {
	if s.Instance != "" && !instanceName.MatchString(s.Instance) {
		return fmt.Errorf("instance %q: invalid name", s.Instance)
	}
	if s.DNSPort != 0 && s.DNSPort != DNSPort {
		return fmt.Errorf("dns_port %d; only %d is allowed", s.DNSPort, DNSPort)
	}
	if s.Trial < 0 {
		return fmt.Errorf("trial %v is negative", s.Trial)
	}
	for name, ports := range map[string][]uint16{"inbound": s.Inbound.List,
		"exclude_inbound": s.ExcludeInbound, "exclude_outbound_ports": s.ExcludeOutboundPorts,
		"own_ports": s.OwnPorts} {
		if len(ports) > maxPorts {
			return fmt.Errorf("%s: %d ports; at most %d", name, len(ports), maxPorts)
		}
		if slices.Contains(ports, 0) {
			return fmt.Errorf("%s: port 0", name)
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
				return fmt.Errorf("%s: %q is no service, scope or slice", name, u)
			}
		}
	}
	return nil
}

// upgrade gives settings of an earlier protocol the meaning of the current one.
func (s *Settings) upgrade(protocol int) {
	if protocol < 2 {
		s.InboundClosed = s.FailClosed
	}
}

// TableName returns the name of an instance's table in family inet.
func TableName(instance string) string { return tableName("outrider", instance) }

// closedName is the name of the table that rejects connections; it has no owner.
func closedName(instance string) string { return tableName("outrider-closed", instance) }

// natName is the name of the table that keeps established connections translated.
func natName(instance string) string { return tableName("outrider-nat", instance) }

func tableName(name, instance string) string {
	if instance == "" {
		return name
	}
	return name + "_" + instance
}

// State is the value of the D-Bus property Capture.
type State string

// The states.
const (
	Off       State = "off"       // no settings
	On        State = "on"        // the rules are in force
	Withdrawn State = "withdrawn" // settings, but no rules; Status.Reason says why
	Closed    State = "closed"    // the same, and inbound connections are rejected
	Trial     State = "trial"     // in force until Status.Until, or until confirmed
)

// InForce reports whether connections are captured.
func (s State) InForce() bool { return s == On || s == Trial }

// Status is what the helper reports after each request and each change.
type Status struct {
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"` // of a trial
	Since  time.Time `json:"since,omitzero"`
	// Families that Envoy serves and that are therefore captured.
	Families Families `json:"families"`
	// Closed: outbound connections that would be captured are rejected while they are not;
	// ClosedInbound: inbound ones.
	Closed        bool      `json:"closed,omitempty"`
	ClosedInbound bool      `json:"closed_inbound,omitempty"`
	DNS           DNSStatus `json:"dns"`
	// Unowned: this kernel (before 5.12) does not remove the rules when the helper ends.
	Unowned  bool      `json:"unowned,omitempty"`
	Settings *Settings `json:"settings,omitempty"`
	Users    Users     `json:"users"`
	Units    []Unit    `json:"units,omitempty"` // those of the settings that run
	Counters []Counter `json:"counters,omitempty"`
	Version  string    `json:"version,omitempty"` // of the helper
	PID      int       `json:"pid,omitempty"`
}

// DNSStatus is the redirection of queries to the agent's DNS proxy.
type DNSStatus struct {
	State     State        `json:"state"` // off, on, withdrawn
	Reason    string       `json:"reason,omitempty"`
	Resolvers []netip.Addr `json:"resolvers,omitempty"` // of redirected queries, if State is on
}

// Counter counts what matched the rules of one Rule.Key. Where connections are redirected, only the
// first packet of each is counted.
type Counter struct {
	Rule    string `json:"rule"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Families are address families.
type Families struct {
	IPv4 bool `json:"ipv4"`
	IPv6 bool `json:"ipv6"`
}

func (f Families) any() bool { return f.IPv4 || f.IPv6 }

func (f Families) or(g Families) Families { return Families{f.IPv4 || g.IPv4, f.IPv6 || g.IPv6} }

var errNoSettings = errors.New("there are no settings: capture.mode is none, or Envoy is not live")
