package capture

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables/binaryutil"
)

// Priorities of the chains. docker and podman translate at -100, firewalld at -90. Outbound
// connections are redirected before these; inbound ones after, so that published and forwarded
// ports are not captured as ports of this host.
const (
	natPriority     = -105
	inboundPriority = -85
)

// Names of rules that are not derived from a key.
const (
	ruleEstablished    = "established connection"
	ruleFamily         = "Envoy does not listen on this address family"
	ruleAgent          = "user of the agent"
	ruleEnvoy          = "user of Envoy"
	ruleEnvoyToHost    = "Envoy calls this host"
	ruleLoopback       = "address of this host"
	ruleOwnPorts       = "port of Outrider"
	ruleProbe          = "check of outrider-capture"
	ruleRedirected     = "redirected connection"
	ruleDirect         = "direct connection to a capture port"
	ruleOriginalSource = "Envoy calls the application from the client's address"
	ruleForwarded      = "not an address of this host"
)

// fromEnvoy are the source addresses of Envoy's connections to the application: Istio's address,
// and ::1.
var fromEnvoy = []netip.Prefix{netip.MustParsePrefix("127.0.0.6/32"),
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("::6/128")}

var loopbackNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("::1/128")}

// buildTable returns the nftables table for the settings; running are the units of the settings
// that run. The number of rules is independent of the number of ports and networks. For units it
// depends only on the number of levels of their control groups.
func buildTable(s *Settings, users Users, families AddressFamilies, running []Unit) *Table {
	b := &builder{table: &Table{Name: TableName(s.Instance), OwnedByHelper: true}, running: running}
	own := b.ports("capture_ports", []uint16{OutboundPort, InboundPort})
	b.table.Chains = []Chain{
		{Name: "output", Type: "nat", Hook: "output", Priority: natPriority,
			Rules: slices.Concat(b.start(families), b.outbound(s, users))},
		{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: inboundPriority,
			Rules: slices.Concat(b.start(families), b.inbound(s))},
		{Name: "input", Type: "filter", Hook: "input", Rules: []Rule{
			rule(ruleRedirected, Direct, port{own}, redirected{}),
			rule(ruleProbe, Direct, port{own}, probe{}),
			rule(ruleDirect, refused, port{own}),
		}},
		b.untranslated(s, users, families),
	}
	// TPROXY needs no chain unredirected: it does not depend on conntrack, because of which the
	// kernel does not redirect some SYNs with NAT.
	if s.PreserveClientAddress {
		b.table.Chains[1] = transparentChain(b.table.Chains[1].Rules)
	} else {
		b.table.Chains = append(b.table.Chains, b.unredirected(s, families))
	}
	return b.table
}

// builder collects the sets of a table.
type builder struct {
	table   *Table
	running []Unit
}

func rule(key string, decision Decision, matches ...match) Rule {
	return Rule{ConfigKey: key, Decision: decision, Matches: matches}
}

// start returns the rules that exempt traffic which is never captured.
func (b *builder) start(families AddressFamilies) []Rule {
	rules := []Rule{rule(ruleEstablished, Direct, notSYN{})}
	for _, f := range []struct{ ipv6, served bool }{{false, families.IPv4}, {true, families.IPv6}} {
		if !f.served {
			rules = append(rules, rule(ruleFamily, Direct, family{f.ipv6}))
		}
	}
	return rules
}

// outbound returns the rules for connections that this host makes.
func (b *builder) outbound(s *Settings, users Users) []Rule {
	rules := []Rule{rule(ruleAgent, Direct, user{b.users("agent", users.Agent)})}
	if s.PreserveClientAddress {
		rules = append(rules, rule(ruleOriginalSource, Direct, marked{}))
	}
	envoy := user{b.users("envoy", users.Envoy)}
	sources4, sources6 := b.networks("from_envoy", fromEnvoy)
	loop4, loop6 := b.networks("loopback", loopbackNetworks)
	for _, sets := range [][2]*Set{{sources4, loop4}, {sources6, loop6}} {
		rules = append(rules, rule(ruleEnvoyToHost, Inbound, isTCP{}, envoy, loopback{},
			address{set: sets[0], source: true, except: true}, address{set: sets[1], except: true}))
	}
	rules = append(rules, rule(ruleEnvoy, Direct, envoy), rule(ruleLoopback, Direct, loopback{}),
		rule("capture.exclude_outbound_ports", Direct,
			port{b.ports("exclude_outbound_ports", s.ExcludeOutboundPorts)}))
	for _, set := range b.both("exclude_outbound", s.ExcludeOutbound) {
		rules = append(rules, rule("capture.exclude_outbound_cidrs", Direct, address{set: set}))
	}
	for _, m := range b.units("exclude_units", s.ExcludeUnits) {
		rules = append(rules, rule("capture.exclude_units", Direct, m))
	}
	networks := b.both("outbound", s.outbound())
	if len(s.Units) == 0 {
		for _, set := range networks {
			rules = append(rules, outboundRule("capture.outbound_cidrs", set))
		}
	}
	for _, m := range b.units("units", s.Units) {
		for _, set := range networks {
			rules = append(rules, outboundRule("capture.units", set, m))
		}
	}
	return rules
}

func outboundRule(key string, networks *Set, matches ...match) Rule {
	r := rule(key, Outbound, append([]match{isTCP{}, address{set: networks}}, matches...)...)
	if networks.Kind == setIPv6 {
		r.Action = toSource{}
	}
	return r
}

// inbound returns the rules for connections from other hosts.
func (b *builder) inbound(s *Settings) []Rule {
	rules := []Rule{
		rule(ruleOwnPorts, Direct, port{b.ports("own_ports", s.AgentPorts)}),
		rule("capture.exclude_inbound_ports", Direct,
			port{b.ports("exclude_inbound_ports", s.ExcludeInbound)}),
	}
	captured := match(isTCP{})
	if !s.Inbound.All {
		captured = port{b.ports("inbound_ports", s.Inbound.List)}
	}
	return append(rules, rule("capture.inbound_ports", Inbound, captured, toHost{}))
}

func (b *builder) add(name string, kind setKind, elements []Element) *Set {
	for i := range b.table.Sets {
		if b.table.Sets[i].Name == name {
			return &b.table.Sets[i]
		}
	}
	b.table.Sets = append(b.table.Sets, Set{name, kind, elements})
	set := b.table.Sets[len(b.table.Sets)-1]
	return &set
}

func (b *builder) ports(name string, ports []uint16) *Set {
	sorted := slices.Compact(slices.Sorted(slices.Values(ports)))
	elements := make([]Element, len(sorted))
	for i, p := range sorted {
		elements[i] = Element{Text: strconv.Itoa(int(p)), Key: binaryutil.BigEndian.PutUint16(p)}
	}
	return b.add(name, setPorts, elements)
}

func (b *builder) users(name string, uid uint32) *Set {
	return b.add(name, setUsers, []Element{{Text: strconv.Itoa(int(uid)),
		Key: binaryutil.NativeEndian.PutUint32(uid)}})
}

func (b *builder) both(name string, networks []netip.Prefix) []*Set {
	four, six := b.networks(name, networks)
	return []*Set{four, six}
}

// networks returns the sets NAME4 and NAME6. It omits networks that others contain, because the
// kernel rejects overlapping intervals.
func (b *builder) networks(name string, networks []netip.Prefix) (four, six *Set) {
	sorted := slices.Clone(networks)
	for i := range sorted {
		sorted[i] = sorted[i].Masked()
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var elements [2][]Element
	var last netip.Prefix
	for _, n := range sorted {
		if last.IsValid() && last.Overlaps(n) {
			continue
		}
		last = n
		family := 0
		if n.Addr().Is6() {
			family = 1
		}
		elements[family] = append(elements[family],
			Element{Text: n.String(), Key: n.Addr().AsSlice(), End: after(n)})
	}
	return b.add(name+"4", setIPv4, elements[0]), b.add(name+"6", setIPv6, elements[1])
}

// after returns the address that follows a network, nil if there is none.
func after(n netip.Prefix) []byte {
	last := n.Addr().AsSlice()
	for bit := n.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	address, _ := netip.AddrFromSlice(last)
	if next := address.Next(); next.IsValid() {
		return next.AsSlice()
	}
	return nil
}

// units returns one match per level of the units' control groups.
func (b *builder) units(name string, wanted []string) []match {
	levels := map[int][]Element{}
	for _, u := range b.running {
		if slices.Contains(wanted, u.Name) {
			levels[u.Level] = append(levels[u.Level], Element{Text: strconv.Quote(u.Path),
				Key: binaryutil.NativeEndian.PutUint64(u.ID)})
		}
	}
	var matches []match
	for level := 1; level <= maxLevel; level++ {
		if elements := levels[level]; elements != nil {
			matches = append(matches, unit{b.add(fmt.Sprintf("%s_level%d", name, level), setCGroups,
				elements), level})
		}
	}
	return matches
}
