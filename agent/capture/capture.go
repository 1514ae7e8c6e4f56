// Package capture redirects connections of this host to Envoy. Settings say what to capture,
// buildTable turns them into a typed Table, and Explain evaluates tables for one connection. The
// program outrider-capture (Main), the helper, owns the table in the kernel; Client is the agent's
// side.
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
	"net/netip"
	"time"
)

// Ports of Envoy's listeners for captured connections, and of the DNS proxy for captured queries.
const (
	OutboundPort = 15001
	InboundPort  = 15006
	dnsPort      = 15053
)

// Users are the users whose own connections are never captured as outbound ones. They are arguments
// of outrider-capture, not Settings: otherwise the agent could choose which user's listener
// receives connections.
type Users struct {
	Envoy uint32 `json:"envoy"`
	Agent uint32 `json:"agent"`
}

// TableName returns the name of an instance's table in family inet.
func TableName(instance string) string { return tableName("outrider", instance) }

// closedName is the name of the table that rejects connections; it has no owner.
func closedName(instance string) string { return tableName("outrider-closed", instance) }

// natName is the name of the table with which the kernel continues to translate the addresses of
// established connections after the rules have been removed.
func natName(instance string) string { return tableName("outrider-nat", instance) }

func tableName(name, instance string) string {
	if instance == "" {
		return name
	}
	return name + "_" + instance
}

// State is the state of the interception, as in the D-Bus property Capture.
type State string

// The states.
const (
	StateOff       State = "off"       // no settings
	StateOn        State = "on"        // the rules are in force
	StateWithdrawn State = "withdrawn" // settings, but no rules; Status.Reason says why
	StateClosed    State = "closed"    // withdrawn, and inbound connections are rejected
	StateTrial     State = "trial"     // in force until Status.Until, or until confirmed
)

// InForce reports whether connections are captured.
func (s State) InForce() bool { return s == StateOn || s == StateTrial }

// Status is outrider-capture's report after each request and each change.
type Status struct {
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"` // end of a trial
	Since  time.Time `json:"since,omitzero"`
	// CapturedFamilies are the address families that are captured, because Envoy serves them.
	CapturedFamilies AddressFamilies `json:"families"`
	// OutboundRejected reports that outbound connections are rejected while they cannot be
	// captured, InboundRejected that inbound ones are.
	OutboundRejected bool      `json:"closed,omitempty"`
	InboundRejected  bool      `json:"closed_inbound,omitempty"`
	DNS              DNSStatus `json:"dns"`
	// RulesOutliveHelper reports that this kernel (before 5.12) does not remove the rules when
	// outrider-capture ends.
	RulesOutliveHelper bool      `json:"unowned,omitempty"`
	Settings           *Settings `json:"settings,omitempty"`
	Users              Users     `json:"users"`
	Units              []Unit    `json:"units,omitempty"` // running ones of the units in Settings
	Counters           []Counter `json:"counters,omitempty"`
	Version            string    `json:"version,omitempty"` // of outrider-capture
	PID                int       `json:"pid,omitempty"`
}

// DNSStatus is the state of the redirection of queries to the agent's DNS proxy.
type DNSStatus struct {
	State     State        `json:"state"` // off, on, withdrawn
	Reason    string       `json:"reason,omitempty"`
	Resolvers []netip.Addr `json:"resolvers,omitempty"` // queries to these addresses are redirected
}

// Counter counts the packets that matched the rules of one Rule.ConfigKey. Of redirected
// connections only the first packet counts.
type Counter struct {
	Rule    string `json:"rule"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// AddressFamilies is a set of address families.
type AddressFamilies struct {
	IPv4 bool `json:"ipv4"`
	IPv6 bool `json:"ipv6"`
}

func (f AddressFamilies) any() bool { return f.IPv4 || f.IPv6 }

func (f AddressFamilies) or(g AddressFamilies) AddressFamilies {
	return AddressFamilies{f.IPv4 || g.IPv4, f.IPv6 || g.IPv6}
}

var errNoSettings = errors.New("no interception settings: capture.mode is none, or Envoy is not " +
	"live")
