package capture

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// Queries to the host's resolvers are redirected by a table of its own, which is in force while the
// agent is connected, its DNS proxy answers, and Settings are applied, whether Envoy serves or not.
// The kernel closes the connection when the agent ends; queries find a proxy that hangs.
//
// While the agent restarts, systemd has its sockets, in which queries wait. The table stays as long
// as these exist, for agentGrace, until the next agent answers.

const (
	dnsEvery   = 1500 * time.Millisecond // between two queries to a DNS proxy that answers
	dnsTimeout = 50 * time.Millisecond
	// dnsPatience is how long after its last answer a DNS proxy counts as one that hangs. One that is
	// busy may miss a query.
	dnsPatience = dnsEvery + time.Second
	// agentGrace is how long an agent may take to restart, and to connect to a helper that has just
	// started or was upgraded. It is the patience of most clients of DNS.
	agentGrace = 5 * time.Second
)

// dnsName is the name of the table that redirects DNS.
func dnsName(instance string) string { return tableName("outrider-dns", instance) }

// dnsCapture owns the table that redirects DNS. Its fields belong to the goroutine of helper.run.
type dnsCapture struct {
	rules      *ownerSocket // nil: not in force
	table      *Table
	generation int      // of the settings in table
	families   Families // in which the proxy answers
	checked    time.Time
	answered   time.Time
	silent     bool         // it did not answer the last query
	resolvers  []netip.Addr // redirected
	host       []netip.Addr // resolvers of the host
	read       time.Time    // of host
	stale      bool         // sockets in use may be redirected without rules
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

const (
	keyDNS     = "capture.dns"
	resolvConf = "/etc/resolv.conf"
)

// dnsRules returns the table that redirects queries to resolvers.
func dnsRules(s *Settings, users Users, resolvers []netip.Addr, running []Unit) *Table {
	b := &builder{table: &Table{Name: dnsName(s.Instance), Owned: true}, running: running}
	rules := []Rule{rule(ruleAgent, Direct, user{b.users("agent", users.Agent)}),
		rule(ruleEnvoy, Direct, user{b.users("envoy", users.Envoy)})}
	for _, m := range b.units("exclude_units", s.ExcludeUnits) {
		rules = append(rules, rule("capture.exclude_units", Direct, m))
	}
	var networks []netip.Prefix
	for _, r := range resolvers {
		networks = append(networks, netip.PrefixFrom(r, r.BitLen()))
	}
	units := b.units("units", s.Units)
	for _, set := range b.both("resolvers", networks) {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			if len(s.Units) == 0 {
				rules = append(rules, rule(keyDNS, DNS, query(protocol), address{set: set}))
			}
			for _, m := range units {
				rules = append(rules, rule(keyDNS, DNS, query(protocol), address{set: set}, m))
			}
		}
	}
	b.table.Chains = []Chain{{Name: "output", Type: "nat", Hook: "output",
		Priority: natPriority - 1, Rules: rules}} // before connections are redirected to Envoy
	return b.table
}

// query holds for packets of a protocol to port 53.
type query byte

func (q query) text() string {
	return map[query]string{unix.IPPROTO_UDP: "udp", unix.IPPROTO_TCP: "tcp"}[q] + " dport 53"
}

func (q query) exprs() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal(byte(q)),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2,
			Len: 2}, equal(0, 53)}
}

func (q query) holds(c *Connection) bool {
	return strings.HasPrefix(q.text(), c.Protocol+" ") && c.Destination.Port() == 53
}

// wantedDNS returns the wanted state of the redirection.
func (h *helper) wantedDNS(now time.Time) DNSStatus {
	d := &h.dns
	if h.Settings == nil || h.Settings.dnsPort() == 0 {
		return DNSStatus{State: Off}
	}
	if now.Sub(d.read) >= time.Second {
		d.read = now
		var err error
		if d.host, err = readResolvers(h.resolvConf); err != nil {
			h.logf("%v", err)
		}
	}
	if reason := h.heldBack(); reason != "" {
		return DNSStatus{State: Withdrawn, Reason: reason}
	}
	restarts := now.Sub(h.left) < agentGrace
	if len(h.clients) == 0 && !restarts {
		return DNSStatus{State: Withdrawn, Reason: "the agent is not connected"}
	}
	if d.rules == nil || d.generation != h.generation || d.silent || restarts ||
		now.Sub(d.checked) >= dnsEvery {
		h.checkDNS(now, restarts)
	}
	families := d.families
	if !families.any() {
		return DNSStatus{State: Withdrawn, Reason: fmt.Sprintf(
			"the DNS proxy does not answer at port %d", h.Settings.DNSPort)}
	}
	resolvers := slices.DeleteFunc(slices.Clone(d.host), func(r netip.Addr) bool {
		return r.Is4() && !families.IPv4 || r.Is6() && !families.IPv6
	})
	if len(resolvers) == 0 {
		return DNSStatus{State: Withdrawn, Reason: h.resolvConf +
			" has no server whose queries can be redirected"}
	}
	return DNSStatus{State: On, Resolvers: resolvers}
}

// checkDNS checks the DNS proxy. While rules are in force and the agent restarts, it need not
// answer.
func (h *helper) checkDNS(now time.Time, restarts bool) {
	d, connected := &h.dns, len(h.clients) > 0
	d.families = dnsReceives(h.Settings.DNSPort, h.users.Agent)
	d.checked = now
	switch {
	case !d.families.any():
	case (connected || d.rules == nil) && dnsAnswers(d.families, h.Settings.DNSPort):
		if d.answered = now; connected {
			h.left = time.Time{} // it has restarted
		}
	case d.rules == nil || !restarts && now.Sub(d.answered) >= dnsPatience:
		d.families = Families{}
	}
	d.silent = d.answered.Before(now)
}

// reconcileDNS redirects DNS while the proxy answers.
func (h *helper) reconcileDNS(now time.Time) DNSStatus {
	d, next := &h.dns, h.wantedDNS(now)
	if next.State != On {
		h.dropDNS()
		return next
	}
	if d.rules != nil && d.generation == h.generation &&
		slices.Equal(d.resolvers, next.Resolvers) {
		return next
	}
	if d.rules == nil {
		var err error
		if d.rules, err = newOwnerSocket(); err != nil {
			return DNSStatus{State: Withdrawn, Reason: err.Error()}
		}
	}
	table := dnsRules(h.Settings, h.users, next.Resolvers, h.running)
	table.Owned = !h.unowned
	if err := d.rules.install(table); err != nil {
		h.dropDNS()
		return DNSStatus{State: Withdrawn, Reason: err.Error()}
	}
	h.forget.begin() // queries over TCP
	left := slices.DeleteFunc(slices.Clone(d.resolvers), func(r netip.Addr) bool {
		return slices.Contains(next.Resolvers, r)
	})
	h.forgetQueries(left, true)
	h.forgetQueries(next.Resolvers, false)
	d.table, d.generation, d.resolvers = table, h.generation, next.Resolvers
	d.stale = true
	return next
}

func (h *helper) forgetQueries(resolvers []netip.Addr, redirected bool) {
	if err := h.plain.forgetQueries(resolvers, redirected); err != nil {
		h.logf("DNS of sockets in use may follow earlier rules: %v", err)
	}
}

// dropDNS removes the table. Sockets in use are redirected no longer, also those that an earlier
// helper redirected.
func (h *helper) dropDNS() {
	d := &h.dns
	if d.rules != nil {
		if err := d.rules.remove(dnsName(h.instance)); err != nil {
			h.logf("cannot withdraw the redirection of DNS: %v", err)
		}
		_ = d.rules.Close()
		d.rules = nil
	}
	if d.stale {
		h.forgetQueries(slices.Concat(d.resolvers, d.host), true)
		d.resolvers, d.stale = nil, false
	}
}

// readResolvers returns the nameservers of a resolv.conf without link-local ones of IPv6: the
// answers to redirected queries would not reach their senders.
func readResolvers(file string) (all []netip.Addr, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read resolvers: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(fields[1])
		if address = address.Unmap(); err == nil && (address.Is4() || !address.IsLinkLocalUnicast()) {
			all = append(all, address)
		}
	}
	return all, nil
}

// dnsReceives returns the families in which sockets of the agent receive what is redirected to a
// port.
func dnsReceives(port uint16, agent uint32) Families {
	receives := func(address netip.Addr) bool {
		for _, protocol := range []sockdiag.Protocol{sockdiag.TCP, sockdiag.UDP} {
			user, err := sockdiag.Receiver(protocol, netip.AddrPortFrom(address, port))
			if err != nil || user != agent {
				return false
			}
		}
		return true
	}
	return Families{IPv4: receives(loopback4), IPv6: receives(netip.IPv6Loopback())}
}

// dnsAnswers reports whether a query of class CH is refused, as the DNS proxy does once it knows
// the names of the mesh. One process has the sockets of both families.
func dnsAnswers(families Families, port uint16) bool {
	address := loopback4
	if !families.IPv4 {
		address = netip.IPv6Loopback()
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, port)))
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	// one question, type TXT, class CH, for the root
	question := []byte{0x4f, 0x52, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 3}
	answer := make([]byte, 512)
	if c.SetDeadline(time.Now().Add(dnsTimeout)) != nil {
		return false
	}
	if _, err := c.Write(question); err != nil {
		return false
	}
	n, err := c.Read(answer)
	const refused = 5
	return err == nil && n >= 12 && answer[0] == question[0] && answer[1] == question[1] &&
		answer[3]&0xf == refused
}
