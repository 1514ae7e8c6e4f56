package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// Users of the tests; app is an application's user.
const (
	envoyUser = 2001
	agentUser = 2002
	appUser   = 2003
	otherUser = 2004
)

var testUsers = Users{Envoy: envoyUser, Agent: agentUser}

// both holds an IPv4 and an IPv6 address. A decision is tested with each of the two.
type both [2]string

// Addresses of this and other hosts. Those of other hosts answer on every port of otherPorts.
var (
	loopbackAddress = both{"127.0.0.1", "::1"}
	loopbackOther   = both{"127.0.0.9", ""}
	loopbackStub    = both{"127.0.0.53", ""}
	fromEnvoyOwn    = both{"127.0.0.6", "::1"}
	fromIstiosEnvoy = both{"", "::6"}
	here            = both{"198.51.100.1", "2001:db8:1::1"}
	far             = both{"10.2.0.1", "fd02::1"}
	excludedNetwork = both{"10.1.0.1", "fd01::1"}
	otherServer     = both{"10.3.0.1", "fd03::1"}
)

var otherPorts = []int{25, 80, 8080, 15001, 15006}
var herePorts = []int{22, 80, 8080, 15021}

var (
	captureAll = Settings{Inbound: Ports{All: true}, ExcludeInbound: []uint16{22},
		AgentPorts: []uint16{15021}, Outbound: everywhere, ExcludeOutboundPorts: []uint16{25},
		ExcludeOutbound: prefixes("10.1.0.0/16", "10.1.7.0/24", "fd01::/16")}
	captureSome = Settings{Inbound: Ports{List: []uint16{8080, 22}}, ExcludeInbound: []uint16{22},
		Outbound: prefixes("10.2.0.0/16", "10.2.0.0/24", "fd02::/16")}
	captureNone        = Settings{}
	captureDNS         = dnsSettings(captureAll)
	captureTransparent = transparentSettings(captureAll)
)

func dnsSettings(s Settings) Settings {
	s.DNSPort, s.FailOutboundClosed, s.FailInboundClosed = dnsPort, true, true
	return s
}

func transparentSettings(s Settings) Settings {
	s.PreserveClientAddress = true
	return s
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// A decision is a test case: a connection and its expected treatment.
type decision struct {
	name    string
	inbound bool // from another host
	udp     bool
	user    int
	source  both // zero: any
	to      both
	port    int
	want    Decision
	key     string
}

var decisionsOfAll = []decision{
	{name: "outside", user: appUser, to: far, port: 80, want: Outbound,
		key: "capture.outbound_cidrs"},
	{name: "outside as root", to: far, port: 8080, want: Outbound, key: "capture.outbound_cidrs"},
	{name: "15001 of another host", user: appUser, to: far, port: 15001, want: Outbound,
		key: "capture.outbound_cidrs"},
	{name: "excluded port", user: appUser, to: far, port: 25, want: Direct,
		key: "capture.exclude_outbound_ports"},
	{name: "excluded network", user: appUser, to: excludedNetwork, port: 80, want: Direct,
		key: "capture.exclude_outbound_cidrs"},
	{name: "agent outside", user: agentUser, to: far, port: 80, want: Direct, key: ruleAgent},
	{name: "agent to this host", user: agentUser, to: here, port: 80, want: Direct,
		key: ruleAgent},
	{name: "Envoy outside", user: envoyUser, to: far, port: 80, want: Direct, key: ruleEnvoy},
	{name: "Envoy to this host", user: envoyUser, to: here, port: 80, want: Inbound,
		key: ruleEnvoyToHost},
	{name: "Envoy to an excluded port of this host", user: envoyUser, to: here, port: 22,
		want: Inbound, key: ruleEnvoyToHost},
	{name: "Envoy to the application", user: envoyUser, source: fromEnvoyOwn, to: here, port: 80,
		want: Direct, key: ruleEnvoy},
	{name: "Envoy of an istiod to the application", user: envoyUser, source: fromIstiosEnvoy,
		to: both{"", here[1]}, port: 80, want: Direct, key: ruleEnvoy},
	{name: "Envoy to loopback", user: envoyUser, to: loopbackAddress, port: 80, want: Direct,
		key: ruleEnvoy},
	{name: "Envoy to another loopback address", user: envoyUser, to: loopbackOther, port: 80,
		want: Direct, key: ruleEnvoy},
	{name: "loopback", user: appUser, to: loopbackAddress, port: 80, want: Direct,
		key: ruleLoopback},
	{name: "application to this host", user: appUser, to: here, port: 80, want: Direct,
		key: ruleLoopback},
	{name: "15001 over loopback", user: appUser, to: loopbackAddress, port: 15001, want: refused,
		key: ruleDirect},
	{name: "15006 over loopback", user: appUser, to: loopbackAddress, port: 15006, want: refused,
		key: ruleDirect},
	{name: "15001 of this host", user: appUser, to: here, port: 15001, want: refused,
		key: ruleDirect},
	{name: "Envoy to 15001 over loopback", user: envoyUser, to: loopbackAddress, port: 15001,
		want: refused, key: ruleDirect},
	{name: "inbound", inbound: true, to: here, port: 80, want: Inbound,
		key: "capture.inbound_ports"},
	{name: "inbound to an excluded port", inbound: true, to: here, port: 22, want: Direct,
		key: "capture.exclude_inbound_ports"},
	{name: "inbound to a port of Outrider", inbound: true, to: here, port: 15021, want: Direct,
		key: ruleOwnPorts},
	{name: "UDP outside", udp: true, user: appUser, to: far, port: 80, want: Direct,
		key: "no rule matches"},
	{name: "UDP inbound", udp: true, inbound: true, to: here, port: 80, want: Direct,
		key: "no rule matches"},
	{name: "UDP over loopback", udp: true, user: appUser, to: loopbackAddress, port: 80,
		want: Direct, key: ruleLoopback},
}

var decisionsOfSome = []decision{
	{name: "listed network", user: appUser, to: far, port: 80, want: Outbound,
		key: "capture.outbound_cidrs"},
	{name: "network that is not listed", user: appUser, to: excludedNetwork, port: 80,
		want: Direct, key: "no rule matches"},
	{name: "listed port", inbound: true, to: here, port: 8080, want: Inbound,
		key: "capture.inbound_ports"},
	{name: "port that is not listed", inbound: true, to: here, port: 80, want: Direct,
		key: "no rule matches"},
	{name: "listed and excluded", inbound: true, to: here, port: 22, want: Direct,
		key: "capture.exclude_inbound_ports"},
	{name: "15006 from outside", inbound: true, to: here, port: 15006, want: refused,
		key: ruleDirect},
}

var decisionsOfNone = []decision{
	{name: "outside", user: appUser, to: far, port: 80, want: Direct, key: "no rule matches"},
	{name: "inbound", inbound: true, to: here, port: 80, want: Direct, key: "no rule matches"},
	{name: "Envoy to this host", user: envoyUser, to: here, port: 80, want: Inbound,
		key: ruleEnvoyToHost},
}

var decisionsOfIPv4Alone = []decision{
	{name: "IPv4", user: appUser, to: both{far[0]}, port: 80, want: Outbound,
		key: "capture.outbound_cidrs"},
	{name: "IPv6", user: appUser, to: both{"", far[1]}, port: 80, want: Direct, key: ruleFamily},
	{name: "IPv6 inbound", inbound: true, to: both{"", here[1]}, port: 80, want: Direct,
		key: ruleFamily},
}

var decisionsOfIPv4AloneClosed = []decision{
	{name: "IPv4", user: appUser, to: both{far[0]}, port: 80, want: Outbound,
		key: "capture.outbound_cidrs"},
	{name: "IPv6", user: appUser, to: both{"", far[1]}, port: 80, want: refused, key: keyFail},
	{name: "IPv6 inbound", inbound: true, to: both{"", here[1]}, port: 80, want: refused,
		key: keyFailInbound},
}

// decisionsOfClosed are the decisions while no connection is redirected and connections in both
// directions are rejected.
var decisionsOfClosed = []decision{
	{name: "outside", user: appUser, to: far, port: 80, want: refused, key: keyFail},
	{name: "excluded port", user: appUser, to: far, port: 25, want: Direct,
		key: "capture.exclude_outbound_ports"},
	{name: "excluded network", user: appUser, to: excludedNetwork, port: 80, want: Direct,
		key: "capture.exclude_outbound_cidrs"},
	{name: "agent", user: agentUser, to: far, port: 80, want: Direct, key: ruleAgent},
	{name: "Envoy", user: envoyUser, to: far, port: 80, want: Direct, key: ruleEnvoy},
	{name: "loopback", user: appUser, to: loopbackAddress, port: 80, want: Direct,
		key: ruleLoopback},
	{name: "inbound", inbound: true, to: here, port: 80, want: refused, key: keyFailInbound},
	{name: "excluded inbound", inbound: true, to: here, port: 22, want: Direct,
		key: "capture.exclude_inbound_ports"},
	{name: "UDP outside", udp: true, user: appUser, to: far, port: 80, want: Direct,
		key: "no rule matches"},
}

var decisionsOfClosedInbound = []decision{
	{name: "outside", user: appUser, to: far, port: 80, want: Direct, key: "no rule matches"},
	{name: "loopback", user: appUser, to: loopbackAddress, port: 80, want: Direct,
		key: ruleLoopback},
	{name: "this host", user: appUser, to: here, port: 80, want: Direct, key: ruleLoopback},
	{name: "inbound", inbound: true, to: here, port: 80, want: refused, key: keyFailInbound},
	{name: "excluded inbound", inbound: true, to: here, port: 22, want: Direct,
		key: "capture.exclude_inbound_ports"},
	{name: "port of Outrider", inbound: true, to: here, port: 15021, want: Direct,
		key: ruleOwnPorts},
}

// closedBoth returns the table that rejects connections in both directions.
func closedBoth(s Settings) *Table {
	s.FailOutboundClosed, s.FailInboundClosed = true, true
	return closedRules(&s, testUsers, nil)
}

// TestDecisions compares the decisions of the kernel and of Explain with the expected ones.
func TestDecisions(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	other := newHosts(t)
	dual := AddressFamilies{true, true}
	inboundAlone := closedInbound(captureAll)
	dns := dnsRules(&captureDNS, testUsers, testResolvers, nil)
	for _, group := range []struct {
		name   string
		tables []*Table // installed, and evaluated by Explain
		cases  []decision
		beside []*Table // also installed; their rules must not match redirected connections
	}{
		{"all", []*Table{buildTable(&captureAll, testUsers, dual, nil)}, decisionsOfAll, nil},
		{"transparent", []*Table{buildTable(&captureTransparent, testUsers, dual, nil)},
			decisionsOfAll,
			nil},
		{"transparent and closed while Envoy serves", []*Table{
			buildTable(&captureTransparent, testUsers, dual, nil)}, decisionsOfAll,
			[]*Table{closedBoth(captureTransparent)}},
		{"some", []*Table{buildTable(&captureSome, testUsers, dual, nil)}, decisionsOfSome, nil},
		{"none", []*Table{buildTable(&captureNone, testUsers, dual, nil)}, decisionsOfNone, nil},
		{"IPv4 alone", []*Table{buildTable(&captureAll, testUsers, AddressFamilies{IPv4: true},
			nil)},
			decisionsOfIPv4Alone, nil},
		{"IPv4 alone, closed",
			[]*Table{buildTable(&captureAll, testUsers, AddressFamilies{IPv4: true}, nil),
				closedBoth(captureAll)}, decisionsOfIPv4AloneClosed, nil},
		{"closed", []*Table{closedBoth(captureAll)}, decisionsOfClosed, nil},
		{"closed inbound", []*Table{closedRules(&inboundAlone, testUsers, nil)},
			decisionsOfClosedInbound, nil},
		{"closed while Envoy serves", []*Table{buildTable(&captureAll, testUsers, dual, nil)},
			decisionsOfAll, []*Table{closedBoth(captureAll)}},
		{"all and DNS", []*Table{dns, buildTable(&captureDNS, testUsers, dual, nil)},
			slices.Concat(decisionsOfAll, decisionsOfDNS), nil},
		{"DNS and closed while Envoy serves", []*Table{dns, buildTable(&captureDNS, testUsers, dual, nil)},
			decisionsOfDNS, []*Table{closedBoth(captureDNS)}},
		{"DNS and closed", []*Table{dns, closedBoth(captureDNS)},
			decisionsOfDNSAlone, nil},
	} {
		socket, err := newOwnerSocket()
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(group.beside, group.tables)
		for _, table := range all {
			if err := socket.install(table); err != nil {
				t.Fatalf("%s: %v", group.name, err)
			}
		}
		for _, d := range group.cases {
			for family, address := range d.to {
				if address != "" {
					t.Run(fmt.Sprintf("%s/%s/%s", group.name, d.name,
						[]string{"IPv4", "IPv6"}[family]), func(t *testing.T) {
						d.check(t, group.tables, other, family)
					})
				}
			}
		}
		for _, table := range all {
			if err := socket.remove(table.Name); err != nil {
				t.Error(err)
			}
		}
		_ = socket.Close()
	}
}

func (d *decision) check(t *testing.T, tables []*Table, other *parts.OtherHost, family int) {
	to := netip.AddrPortFrom(netip.MustParseAddr(d.to[family]), uint16(d.port))
	var source netip.Addr
	if d.source[family] != "" {
		source = netip.MustParseAddr(d.source[family])
	}
	local := slices.Contains([]string{here[family], loopbackAddress[family], loopbackOther[family],
		loopbackStub[family]}, d.to[family])
	protocol := "tcp"
	if d.udp {
		protocol = "udp"
	}
	got := Explain(Connection{Inbound: d.inbound, Protocol: protocol, Source: source,
		Destination: to, UID: uint32(d.user),
		Local: local, ViaLoopback: local}, tables...)
	if got.Decision != d.want || got.ConfigKey != d.key {
		t.Errorf("explained as %s by %q (%s); want %s by %q", got.Decision, got.ConfigKey, got.Rule,
			d.want,
			d.key)
	}
	var answer string
	call := func() { answer = dial(t, protocol, source, to) }
	if d.inbound {
		other.RunOn(t, call)
	} else {
		parts.RunAs(t, d.user, call)
	}
	want := map[Decision]string{Outbound: "15001", Inbound: "15006", DNS: "15053", refused: "refused",
		Direct: fmt.Sprintf("%s %d", map[bool]string{true: "here", false: "far"}[local],
			d.port)}[d.want]
	if answer != want {
		t.Errorf("the kernel's answer is %q, want %q", answer, want)
	}
}

// dial connects and returns the first line that the server sends, or "refused".
func dial(t *testing.T, protocol string, source netip.Addr, to netip.AddrPort) string {
	t.Helper()
	dialer := net.Dialer{Timeout: 3 * time.Second}
	if source.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: source.AsSlice()}
	}
	connection, err := dialer.Dial(protocol, to.String())
	if errors.Is(err, unix.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		t.Errorf("dial %s: %v", to, err)
		return ""
	}
	defer func() { _ = connection.Close() }()
	_ = connection.SetDeadline(time.Now().Add(3 * time.Second))
	if protocol == "udp" {
		if _, err := connection.Write([]byte("?")); err != nil {
			t.Error(err)
		}
	}
	answer := make([]byte, 64)
	n, err := connection.Read(answer)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("read from %s: %v", to, err)
	}
	return string(answer[:n])
}
