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

// DNS queries to the host's resolvers are redirected by an nftables table of their own. It is in
// force while the agent is connected, its DNS proxy answers and Settings are applied, whether Envoy
// serves or not. The agent's end closes its connection; test queries detect a proxy that hangs.
//
// While the agent restarts, systemd holds the proxy's sockets, in which queries wait. The table
// then remains until the next agent answers, for at most agentGrace, if these sockets exist.

const (
	dnsEvery   = 1500 * time.Millisecond // interval of test queries while the DNS proxy answers
	dnsTimeout = 50 * time.Millisecond
	// dnsPatience is the time without an answer after which a DNS proxy counts as hanging. It
	// allows a busy proxy to miss one query.
	dnsPatience = dnsEvery + time.Second
	// agentGrace limits how long an agent may take to restart, and to connect to outrider-capture
	// after its start or upgrade. Most DNS clients wait that long for an answer.
	agentGrace = 5 * time.Second
)

// dnsName is the name of the table that redirects DNS.
func dnsName(instance string) string { return tableName("outrider-dns", instance) }

// dnsCapture owns the table that redirects DNS. Its fields belong to the goroutine of helper.run.
type dnsCapture struct {
	rules      *ownerSocket // nil: not in force
	table      *Table
	generation int             // of the settings from which table was made
	families   AddressFamilies // in which the proxy answers
	checked    time.Time
	answered   time.Time
	silent     bool         // the proxy did not answer the last test query
	resolvers  []netip.Addr // whose queries are redirected
	host       []netip.Addr // resolvers of the host
	read       time.Time    // when host was read
	stale      bool         // sockets in use may still be redirected although the rules are gone
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

const (
	keyDNS     = "capture.dns"
	resolvConf = "/etc/resolv.conf"
)

// dnsRules returns the table that redirects queries to resolvers.
func dnsRules(s *Settings, users Users, resolvers []netip.Addr, running []Unit) *Table {
	b := &builder{table: &Table{Name: dnsName(s.Instance), OwnedByHelper: true}, running: running}
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
		// the chain must precede the one that redirects connections to Envoy
		Priority: natPriority - 1, Rules: rules}}
	return b.table
}

// query is a protocol (TCP or UDP); it matches packets of the protocol to port 53.
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

// wantedDNS returns the state that the redirection of DNS should have.
func (h *helper) wantedDNS(now time.Time) DNSStatus {
	d := &h.dns
	if h.Settings == nil || h.Settings.dnsPort() == 0 {
		return DNSStatus{State: StateOff}
	}
	if now.Sub(d.read) >= time.Second {
		d.read = now
		var err error
		if d.host, err = readResolvers(h.resolvConf); err != nil {
			h.logf("%v", err)
		}
	}
	if reason := h.heldBack(); reason != "" {
		return DNSStatus{State: StateWithdrawn, Reason: reason}
	}
	restarts := now.Sub(h.left) < agentGrace
	if len(h.clients) == 0 && !restarts {
		return DNSStatus{State: StateWithdrawn, Reason: "the agent is not connected"}
	}
	if d.rules == nil || d.generation != h.generation || d.silent || restarts ||
		now.Sub(d.checked) >= dnsEvery {
		h.checkDNS(now, restarts)
	}
	families := d.families
	if !families.any() {
		return DNSStatus{State: StateWithdrawn, Reason: fmt.Sprintf(
			"the DNS proxy does not answer at port %d", h.Settings.DNSPort)}
	}
	resolvers := slices.DeleteFunc(slices.Clone(d.host), func(r netip.Addr) bool {
		return r.Is4() && !families.IPv4 || r.Is6() && !families.IPv6
	})
	if len(resolvers) == 0 {
		return DNSStatus{State: StateWithdrawn, Reason: h.resolvConf +
			" has no server whose queries can be redirected"}
	}
	return DNSStatus{State: StateOn, Resolvers: resolvers}
}

// checkDNS sends a test query to the DNS proxy. restarts reports that the rules are in force and
// the agent is restarting; a proxy that does not answer then counts as working.
func (h *helper) checkDNS(now time.Time, restarts bool) {
	d, connected := &h.dns, len(h.clients) > 0
	d.families = dnsReceives(h.Settings.DNSPort, h.users.Agent)
	d.checked = now
	switch {
	case !d.families.any():
	case (connected || d.rules == nil) && dnsAnswers(d.families, h.Settings.DNSPort):
		if d.answered = now; connected {
			h.left = time.Time{} // the agent has restarted
		}
	case d.rules == nil || !restarts && now.Sub(d.answered) >= dnsPatience:
		d.families = AddressFamilies{}
	}
	d.silent = d.answered.Before(now)
}

// reconcileDNS redirects DNS while the proxy answers.
func (h *helper) reconcileDNS(now time.Time) DNSStatus {
	d, next := &h.dns, h.wantedDNS(now)
	if next.State != StateOn {
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
			return DNSStatus{State: StateWithdrawn, Reason: err.Error()}
		}
	}
	table := dnsRules(h.Settings, h.users, next.Resolvers, h.running)
	table.OwnedByHelper = !h.unowned
	if err := d.rules.install(table); err != nil {
		h.dropDNS()
		return DNSStatus{State: StateWithdrawn, Reason: err.Error()}
	}
	h.forget.begin() // for queries over TCP without an answer yet; forgetQueries handles UDP only
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

// dropDNS removes the table and ends the redirection of sockets in use, including those that an
// earlier outrider-capture redirected.
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

// readResolvers returns the nameservers of a resolv.conf. It omits IPv6 link-local ones, because
// answers to their redirected queries would not reach the senders.
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

// dnsReceives returns the address families in which sockets of the agent's user receive packets
// redirected to a port.
func dnsReceives(port uint16, agent uint32) AddressFamilies {
	receives := func(address netip.Addr) bool {
		for _, protocol := range []sockdiag.Protocol{sockdiag.TCP, sockdiag.UDP} {
			user, err := sockdiag.ReceiverUID(protocol, netip.AddrPortFrom(address, port))
			if err != nil || user != agent {
				return false
			}
		}
		return true
	}
	return AddressFamilies{IPv4: receives(loopback4), IPv6: receives(netip.IPv6Loopback())}
}

// dnsAnswers reports whether the DNS proxy refuses a query of class CH, as it does once it knows
// the names of the mesh. It queries one family only, because one process has the sockets of both.
func dnsAnswers(families AddressFamilies, port uint16) bool {
	address := loopback4
	if !families.IPv4 {
		address = netip.IPv6Loopback()
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, port)))
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	// A query with one question: type TXT, class CH, name ".".
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
