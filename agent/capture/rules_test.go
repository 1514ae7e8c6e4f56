package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// cgroupRoot returns where cgroup v2 is mounted.
func cgroupRoot(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[2] == "cgroup2" {
			return fields[1]
		}
	}
	t.Fatal("cgroup v2 is not mounted")
	return ""
}

// ownCGroup returns this process's control group, without a leading slash.
func ownCGroup(t *testing.T) string {
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(groups)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok {
			return path
		}
	}
	t.Fatal("no control group of version 2")
	return ""
}

// newUnit creates a control group like that of a unit, which exists until the test ends.
func newUnit(t *testing.T, path string) Unit {
	t.Helper()
	folder := filepath.Join(cgroupRoot(t), path)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(folder); err != nil {
			t.Error(err)
		}
	})
	info, err := os.Stat(folder)
	if err != nil {
		t.Fatal(err)
	}
	return Unit{Name: filepath.Base(path), Path: path, ID: info.Sys().(*syscall.Stat_t).Ino,
		Level: strings.Count(path, "/") + 1}
}

// enter moves this process into a control group.
func enter(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cgroupRoot(t), path, "cgroup.procs"), []byte("0"),
		0); err != nil {
		t.Fatal(err)
	}
}

func TestDecisions_OfUnits(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	newHosts(t)
	own, name := ownCGroup(t), fmt.Sprintf("outrider-test-%d", os.Getpid())
	slice := newUnit(t, name+".slice")
	web, batch := newUnit(t, slice.Path+"/web.service"), newUnit(t, slice.Path+"/batch.service")
	defer enter(t, own)
	for _, test := range []struct {
		name           string
		units, exclude []string
		from           string
		want           Decision
		key            string
	}{
		{"every process", nil, nil, web.Path, Outbound, "capture.outbound_cidrs"},
		{"in units", []string{web.Name}, nil, web.Path, Outbound, "capture.units"},
		{"in the slice of units", []string{slice.Name}, nil, batch.Path, Outbound, "capture.units"},
		{"not in units", []string{web.Name}, nil, batch.Path, Direct, "no rule matches"},
		{"outside the slice", []string{slice.Name}, nil, own, Direct, "no rule matches"},
		{"excluded", nil, []string{web.Name}, web.Path, Direct, "capture.exclude_units"},
		{"other than the excluded", nil, []string{web.Name}, batch.Path, Outbound,
			"capture.outbound_cidrs"},
		{"excluded from a slice", []string{slice.Name}, []string{batch.Name}, batch.Path, Direct,
			"capture.exclude_units"},
		{"unit that does not run", []string{"none.service"}, nil, web.Path, Direct,
			"no rule matches"},
	} {
		settings := captureAll
		settings.Units, settings.ExcludeUnits = test.units, test.exclude
		table := buildTable(&settings, testUsers, AddressFamilies{true, true}, []Unit{slice, web,
			batch})
		socket, err := newOwnerSocket()
		if err != nil {
			t.Fatal(err)
		}
		dns := dnsRules(&settings, testUsers, testResolvers, []Unit{slice, web, batch})
		if err := errors.Join(socket.install(table), socket.install(dns)); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		enter(t, test.from)
		to := netip.AddrPortFrom(netip.MustParseAddr(far[0]), 80)
		got := Explain(Connection{Protocol: "tcp", Destination: to, CGroup: test.from}, table)
		if got.Decision != test.want || got.ConfigKey != test.key {
			t.Errorf("%s: explained as %s by %q", test.name, got.Decision, got.ConfigKey)
		}
		if answer := dial(t, "tcp", netip.Addr{}, to); (answer == "15001") != (test.want == Outbound) {
			t.Errorf("%s: the kernel's answer is %q", test.name, answer)
		}
		query := netip.AddrPortFrom(to.Addr(), 53)
		redirected := test.want == Outbound
		got = Explain(Connection{Protocol: "udp", Destination: query, CGroup: test.from}, dns, table)
		if (got.Decision == DNS) != redirected {
			t.Errorf("%s: a query is explained as %s by %q", test.name, got.Decision, got.ConfigKey)
		}
		if answer := dial(t, "udp", netip.Addr{}, query); (answer == "15053") != redirected {
			t.Errorf("%s: the kernel's answer to a query is %q", test.name, answer)
		}
		_ = socket.Close()
	}
	enter(t, own)
}

// conntrack considers a connection new that was established before this host's first rule, such as
// one of ssh. Such a connection must not be redirected.
func TestRules_SpareEstablishedConnections(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	other := newHosts(t)
	var listener net.Listener
	other.RunOn(t, func() {
		var err error
		if listener, err = net.Listen("tcp", "[::]:99"); err != nil {
			t.Fatal(err)
		}
	})
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", net.JoinHostPort(far[0], "99"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	socket, err := newOwnerSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	if err := socket.install(buildTable(&captureAll, testUsers, AddressFamilies{true, true},
		nil)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 8)
	for _, direction := range [][2]net.Conn{{client, server}, {server, client}} {
		if _, err := direction[0].Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if n, err := direction[1].Read(buffer); err != nil || string(buffer[:n]) != "hello" {
			t.Fatalf("%q, %v", buffer[:n], err)
		}
	}
}

// Traffic that this host forwards, such as a container's, is not captured.
func TestRules_LeaveForwardedTrafficAlone(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	other := newHosts(t)
	third := parts.NewOtherHost(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	third.RunOn(t, func() { ip(t, "route add default via "+third.Peer) })
	table := buildTable(&captureAll, testUsers, AddressFamilies{true, true}, nil)
	socket, err := newOwnerSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	if err := socket.install(table); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(other.Address), 80)
	third.RunOn(t, func() {
		if answer := dial(t, "tcp", netip.Addr{}, to); answer != "far 80" {
			t.Errorf("answer %q", answer)
		}
	})
	// The rules of firewalld forward port 8888 to another host, as docker does, and port 8889 to
	// port 80 of this host.
	run(t, "table ip firewalld { chain prerouting { type nat hook prerouting priority -90; "+
		"fib daddr type local tcp dport 8888 dnat to "+to.String()+"; "+
		"tcp dport 8889 redirect to :80; }; "+
		"chain postrouting { type nat hook postrouting priority 100; masquerade; }; }",
		"nft", "-f", "-")
	published := netip.AddrPortFrom(netip.MustParseAddr(third.Peer), 8888)
	forwarded := netip.AddrPortFrom(published.Addr(), 8889)
	for _, settings := range []*Settings{&captureAll, &captureTransparent} {
		for _, table := range []*Table{buildTable(settings, testUsers, AddressFamilies{true, true},
			nil),
			closedBoth(*settings)} {
			if err := socket.install(table); err != nil {
				t.Fatal(err)
			}
		}
		third.RunOn(t, func() {
			if answer := dial(t, "tcp", netip.Addr{}, published); answer != "far 80" {
				t.Errorf("a published port, transparent %t: %q", settings.PreserveClientAddress,
					answer)
			}
			if answer := dial(t, "tcp", netip.Addr{}, forwarded); answer != "here 80" {
				t.Errorf("a forwarded port, transparent %t: %q", settings.PreserveClientAddress,
					answer)
			}
		})
	}
	got := Explain(Connection{Inbound: true, Protocol: "tcp", Destination: to}, table)
	if got.Decision != Direct || got.ConfigKey != ruleForwarded {
		t.Errorf("explained as %v", got)
	}
}

// Ports and networks are set elements, so their number does not change the number of rules.
func TestRules_NumberIsConstant(t *testing.T) {
	count := func(s *Settings) (rules int) {
		for _, c := range buildTable(s, testUsers, AddressFamilies{true, true}, nil).Chains {
			rules += len(c.Rules)
		}
		return rules
	}
	many := captureAll
	for i := range 1000 {
		many.ExcludeOutboundPorts = append(many.ExcludeOutboundPorts, uint16(20000+i))
		many.ExcludeOutbound = append(many.ExcludeOutbound, netip.PrefixFrom(
			netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24))
	}
	if few, all := count(&captureAll), count(&many); few != all {
		t.Errorf("%d rules; with 1,000 ports and networks more %d", few, all)
	}
	if err := many.Validate(); err != nil {
		t.Error(err)
	}
}

func TestInstall_OfManyPortsAndNetworks(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	many := captureAll
	for i := range 4000 {
		many.ExcludeOutboundPorts = append(many.ExcludeOutboundPorts, uint16(20000+i))
		many.ExcludeOutbound = append(many.ExcludeOutbound, netip.PrefixFrom(
			netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24))
	}
	socket, err := newOwnerSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	if err := socket.install(buildTable(&many, testUsers, AddressFamilies{true, true},
		nil)); err != nil {
		t.Fatal(err)
	}
}
