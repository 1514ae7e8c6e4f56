package capture

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
)

// Partial returns a sentence about the address family in which nothing is captured while the other
// one is, "" if there is none or other hosts do not reach this one in it.
func (s Status) Partial() string {
	if !s.State.InForce() || s.Families.IPv4 == s.Families.IPv6 || !hostHas(s.Families.IPv4) {
		return ""
	}
	family, instead := "IPv4", "go direct"
	if s.Families.IPv4 {
		family = "IPv6"
	}
	if s.ClosedInbound {
		instead = "are refused"
	}
	return fmt.Sprintf("nothing is captured over %s, on which Envoy does not listen: inbound "+
		"connections %s", family, instead)
}

// hostHas reports whether this host has an address of a family beside those of loopback.
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

// Reach returns a function that reports whether a connection of another host to an address of this
// host is neither captured nor rejected by the rules that are in force now; why, and what to do. It
// returns nil before the helper has answered, or has failed to.
func (c *Controller) Reach() func(to netip.AddrPort) (direct bool, why, fix string) {
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
	wanted := Rules(settings, users, Families{true, true}, nil)
	var tables []*Table
	if now.State.InForce() {
		tables = append(tables, Rules(settings, users, now.Families, nil))
	}
	if now.ClosedInbound {
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
		case found.Key == ruleFamily:
			return true, found.Key, `set fail_inbound = "closed" in [capture], or let it listen on ` +
				"the other family"
		case connected && settings.ClosesInbound(): // the connection would be closed otherwise
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
