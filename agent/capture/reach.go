package capture

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
)

// UncapturedFamily returns a sentence if only one address family is captured and other hosts can
// reach this host over the other family. Otherwise it returns "".
func (s Status) UncapturedFamily() string {
	if !s.State.InForce() || s.CapturedFamilies.IPv4 == s.CapturedFamilies.IPv6 ||
		!hostHas(s.CapturedFamilies.IPv4) {
		return ""
	}
	family, instead := "IPv4", "go direct"
	if s.CapturedFamilies.IPv4 {
		family = "IPv6"
	}
	if s.InboundRejected {
		instead = "are refused"
	}
	return fmt.Sprintf("nothing is captured over %s, on which Envoy does not listen: inbound "+
		"connections %s", family, instead)
}

// hostHas reports whether this host has a non-loopback address of a family.
func hostHas(ipv6 bool) bool {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && !network.IP.IsLoopback() &&
			(network.IP.To4() == nil) == ipv6 {
			return true
		}
	}
	return false
}

// ReachableDirectly returns a function that reports, as direct, whether the rules in force neither
// capture nor reject connections of other hosts to an address of this host; why and fix are
// messages. ReachableDirectly returns nil before the state of outrider-capture is known.
func (c *Controller) ReachableDirectly() func(to netip.AddrPort) (direct bool, why, fix string) {
	if c.Settings == nil {
		return func(netip.AddrPort) (direct bool, why, fix string) {
			return true, `[capture] mode is "none"`,
				`set mode = "redirect" in [capture], or let it listen on 127.0.0.1`
		}
	}
	c.mu.Lock()
	now, connected, known := c.status, c.client != nil, c.known
	c.mu.Unlock()
	if !known {
		return nil
	}
	_, phase, _ := c.phase()
	settings := c.settings(phase)
	users := c.Users
	if now.PID != 0 {
		users = now.Users
	}
	wanted := buildTable(settings, users, AddressFamilies{true, true}, nil)
	var tables []*Table
	if now.State.InForce() {
		tables = append(tables, buildTable(settings, users, now.CapturedFamilies, nil))
	}
	if now.InboundRejected {
		tables = append(tables, closedRules(settings, users, nil))
	}
	return func(to netip.AddrPort) (direct bool, why, fix string) {
		connection := Connection{Inbound: true, Local: true, Protocol: "tcp", Destination: to}
		found := Explain(connection, tables...)
		switch {
		case found.Decision != Direct:
			return false, "", ""
		case Explain(connection, wanted).Decision == Direct:
			return true, "[capture] inbound_ports does not contain it",
				"add it to inbound_ports, or let it listen on 127.0.0.1"
		case found.ConfigKey == ruleFamily:
			return true, found.ConfigKey, `set fail_inbound = "closed" in [capture], or let it listen on ` +
				"the other family"
		// outrider-capture has withdrawn the rules, for example after a trial
		case connected && settings.RejectsInboundOnFailure():
			return true, cmp.Or(now.Reason, "capture is "+string(now.State)),
				`run "outrider capture confirm"`
		case connected || now.Reason == "":
			return true, fmt.Sprintf("capture is %s%s", now.State, because(now.Reason)),
				`set fail_inbound = "closed" in [capture], or let it listen on 127.0.0.1`
		}
		return true, "outrider-capture does not answer" + because(now.Reason),
			`run "systemctl status outrider-capture.service"`
	}
}
