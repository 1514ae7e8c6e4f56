package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/sockdiag"
)

// Names of the keys whose rules reject connections.
const (
	keyFail        = "capture.fail"
	keyFailInbound = "capture.fail_inbound"
)

// closedRules returns the table that rejects connections which buildTable's rules should have
// redirected but did not: outbound ones with FailOutboundClosed, inbound ones with
// FailInboundClosed.
func closedRules(s *Settings, users Users, running []Unit) *Table {
	b := &builder{table: &Table{Name: closedName(s.Instance)}, running: running}
	start := b.start(AddressFamilies{true, true})
	if s.PreserveClientAddress {
		start = append(start, rule(ruleRedirected, Direct, transparent{}))
	}
	reject := func(key string, rules []Rule) []Rule {
		for i := range rules {
			if rules[i].Decision != Direct {
				rules[i].ConfigKey, rules[i].Decision, rules[i].Action = key, refused, nil
			}
		}
		return rules
	}
	if s.closesOutbound() {
		own := b.ports("capture_ports", []uint16{OutboundPort, InboundPort, dnsPort})
		b.table.Chains = append(b.table.Chains, Chain{Name: "output", Type: "filter",
			Hook: "output", Rules: slices.Concat(start,
				[]Rule{rule(ruleRedirected, Direct, port{own}, redirected{})},
				reject(keyFail, b.outbound(s, users)))})
	}
	if s.RejectsInboundOnFailure() {
		b.table.Chains = append(b.table.Chains, Chain{Name: "input", Type: "filter", Hook: "input",
			// Connections that another program redirects are never captured, so they are not
			// rejected either.
			Rules: slices.Concat(start, []Rule{rule(ruleRedirected, Direct, redirected{}),
				rule(ruleLoopback, Direct, loopback{arriving: true})},
				reject(keyFailInbound, b.inbound(s)))})
	}
	return b.table
}

// closes reports, for each direction, whether connections that are not redirected are rejected.
func (h *helper) closes() (outbound, inbound bool) {
	if h.Settings == nil || h.Withdrawn || h.Expired {
		return false, false
	}
	return h.Settings.closesOutbound(), h.Settings.RejectsInboundOnFailure()
}

// reconcileClosed installs the table that rejects connections, and restores it if another program
// has deleted it.
func (h *helper) reconcileClosed(now time.Time) error {
	name := closedName(h.instance)
	if outbound, inbound := h.closes(); !outbound && !inbound {
		if h.installed.closed == closedRemoved || h.installed.closed == closedLeft && h.Settings == nil {
			return nil
		}
		err := h.plain.remove(name)
		if err == nil {
			h.installed.closed = closedRemoved
		}
		return err
	}
	if h.installed.closed == h.generation && now.Sub(h.looked) >= checkEvery {
		names, err := h.plain.tables()
		if err != nil {
			return err
		}
		if !slices.Contains(names, name) {
			h.installed.closed = closedUnknown
		}
	}
	if h.installed.closed == h.generation {
		return nil
	}
	err := h.plain.install(closedRules(h.Settings, h.users, h.running))
	if err == nil {
		h.installed.closed = h.generation
	}
	return err
}

// openPorts returns text for a message that names the ports on which other hosts can reach an
// application and which s captures.
func openPorts(s *Settings, users Users) string {
	sockets, err := sockdiag.ListeningSockets()
	if err != nil {
		return err.Error()
	}
	table := buildTable(s, users, AddressFamilies{true, true}, nil)
	var ports []int
	for _, socket := range sockets {
		at := Connection{Inbound: true, Local: true, Protocol: "tcp", Destination: netip.AddrPortFrom(
			socket.Address.Addr().Unmap(), socket.Address.Port())}
		if !at.Destination.Addr().IsLoopback() && socket.UID != users.Envoy &&
			Explain(at, table).Decision == Inbound {
			ports = append(ports, int(socket.Address.Port()))
		}
	}
	slices.Sort(ports)
	if ports = slices.Compact(ports); len(ports) == 0 {
		return "no application listens now"
	}
	return "ports " + strings.Trim(fmt.Sprint(ports), "[]")
}
