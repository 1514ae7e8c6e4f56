package exposure

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/sockdiag"
)

// rules are InterceptionRules that let other hosts reach the addresses and address families that
// the map contains.
type rules map[string]bool

func (r rules) ReachableDirectly() func(to netip.AddrPort) (direct bool, why, fix string) {
	return func(to netip.AddrPort) (direct bool, why, fix string) {
		return r[to.Addr().String()] || r[familyOf(to.Addr())], "the rules", "cure"
	}
}

func (rules) Changed() <-chan struct{} { return nil }

var peers = resource.Origin{File: "peers.yaml", Line: 3, Kind: "PeerAuthentication",
	Namespace: "default", Name: "default"}

// policy requires mutual TLS of all ports but 9000; 80 and 9000 are ports of the node.
func policy(port uint16) (by resource.Origin, strict, own bool) {
	if port == 9000 {
		return by, false, true
	}
	return peers, true, port == 80
}

func checker(r InterceptionRules) *Checker {
	return New(Options{Rules: r, Conditions: condition.NewRegistry(),
		Policy:     func() MutualTLSPolicy { return policy },
		IsCaptured: func(port uint16) bool { return port == 8080 || port == 22 },
		ExclusionReason: func(port uint16) string {
			return map[uint16]string{22: "capture.exclude_inbound_ports",
				15020: "port of Outrider"}[port]
		},
		IsEnvoySocket: func(s sockdiag.Socket) bool { return s.UID == 7 }})
}

func TestLook(t *testing.T) {
	host := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1")}
	for _, test := range []struct {
		name, at string
		uid      uint32
		v6only   bool
		rules    rules
		want     string // exposed address families; "" = not exposed
		outside  string
	}{
		{name: "captured", at: "0.0.0.0:80"},
		{name: "node's port", at: "0.0.0.0:80", rules: rules{"IPv4": true}, want: "IPv4"},
		{name: "both families", at: "[::]:80", rules: rules{"IPv4": true, "IPv6": true},
			want: "IPv4 IPv6"},
		{name: "a family without Envoy", at: "[::]:80", rules: rules{"IPv6": true}, want: "IPv6"},
		{name: "only IPv6", at: "[::]:80", v6only: true, rules: rules{"IPv4": true}},
		{name: "an IPv4 listener does not get IPv6", at: "0.0.0.0:80", rules: rules{"IPv6": true}},
		{name: "one address", at: "198.51.100.9:80", rules: rules{"198.51.100.9": true},
			want: "IPv4"},
		{name: "mapped address", at: "[::ffff:198.51.100.9]:80", rules: rules{"198.51.100.9": true},
			want: "IPv4"},
		{name: "loopback", at: "127.0.0.1:80", rules: rules{"IPv4": true}},
		{name: "loopback of IPv6", at: "[::1]:80", rules: rules{"IPv6": true}},
		{name: "mapped loopback", at: "[::ffff:127.0.0.1]:80", rules: rules{"IPv4": true}},
		{name: "inbound_ports", at: "0.0.0.0:8080", rules: rules{"IPv4": true}, want: "IPv4"},
		{name: "neither node nor inbound_ports", at: "0.0.0.0:81", rules: rules{"IPv4": true}},
		{name: "not STRICT", at: "0.0.0.0:9000", rules: rules{"IPv4": true}},
		{name: "Envoy's listener", at: "0.0.0.0:80", uid: 7, rules: rules{"IPv4": true}},
		{name: "excluded", at: "0.0.0.0:22", rules: rules{"IPv4": true},
			outside: "capture.exclude_inbound_ports"},
		{name: "Envoy's, for the agent", at: "0.0.0.0:15020", uid: 7, rules: rules{"IPv4": true},
			outside: "port of Outrider"},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := netip.MustParseAddrPort(test.at)
			r := checker(test.rules).look(policy, []sockdiag.Socket{{Address: at, UID: test.uid,
				IPv6Only: test.v6only}}, host)
			families, outside := "", ""
			if len(r.Exposed) > 0 {
				families = strings.Join(r.Exposed[0].Families, " ")
			}
			if len(r.OutsideMutualTLS) > 0 {
				outside = r.OutsideMutualTLS[0].Reason
			}
			if families != test.want || outside != test.outside {
				t.Errorf("%+v", r)
			}
		})
	}
}

// The condition and the not-ready reason name port, address, object and fix. Both end when the
// rules no longer expose the port, or when the application stops listening.
func TestCheck_Condition(t *testing.T) {
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	r := rules{"IPv4": true}
	c := checker(r)
	c.Options.Policy = func() MutualTLSPolicy {
		return func(port uint16) (resource.Origin, bool, bool) { return peers, port == at.Port(), true }
	}
	c.FindExposedPorts()
	want := fmt.Sprintf("other hosts reach port %d (%s) over IPv4 without the mutual TLS that "+
		"PeerAuthentication default/default at peers.yaml:3 requires: the rules; cure", at.Port(), at)
	all := c.Conditions.Conditions()
	if len(all) != 1 || all[0].Code != ConditionBypassed || all[0].Severity != condition.Error ||
		all[0].Sentence != want || c.NotReadyReason() != want {
		t.Errorf("%+v, %q; want %q", all, c.NotReadyReason(), want)
	}
	clear(r)
	if c.FindExposedPorts(); len(c.Conditions.Conditions()) > 0 || c.NotReadyReason() != "" {
		t.Errorf("closed now: %+v", c.Conditions.Conditions())
	}
	r["IPv4"] = true
	c.FindExposedPorts()
	_ = listener.Close()
	if c.FindExposedPorts(); c.NotReadyReason() != "" {
		t.Errorf("nobody listens any more: %q", c.NotReadyReason())
	}
}

// unknownRules are the rules of a helper that has not responded yet.
type unknownRules struct{ rules }

func (unknownRules) ReachableDirectly() func(netip.AddrPort) (bool, string, string) { return nil }

// While the rules are unknown, no condition is raised, and the agent is not ready if a port
// requires mutual TLS.
func TestCheck_RulesAreNotKnown(t *testing.T) {
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	at := netip.MustParseAddrPort(listener.Addr().String())
	for _, strict := range []bool{true, false} {
		c := checker(unknownRules{})
		c.Options.Policy = func() MutualTLSPolicy {
			return func(port uint16) (resource.Origin, bool, bool) {
				return peers, strict && port == at.Port(), true
			}
		}
		c.FindExposedPorts()
		if len(c.Conditions.Conditions()) > 0 ||
			strings.HasPrefix(c.NotReadyReason(), "waiting") != strict {
			t.Errorf("STRICT %v: %+v, %q", strict, c.Conditions.Conditions(), c.NotReadyReason())
		}
	}
}

func TestReport_IsBounded(t *testing.T) {
	var r Report
	for port := range uint16(100) {
		r.Exposed = append(r.Exposed, ExposedPort{Port: port})
	}
	if s := r.sentence(); !strings.HasSuffix(s, "and 95 more ports: run \"outrider mesh check\"") {
		t.Error(s)
	}
}

// Only connections from other hosts to the application itself are counted. Connections to Envoy's
// sockets, and connections that come from Envoy or from local clients, are not.
func TestOlder(t *testing.T) {
	socket := func(local, peer string, uid uint32) sockdiag.Socket {
		return sockdiag.Socket{Address: netip.MustParseAddrPort(local),
			Peer: netip.MustParseAddrPort(peer), UID: uid}
	}
	got := checker(rules{}).older(map[uint16]bool{80: true}, []sockdiag.Socket{
		socket("192.0.2.1:80", "198.51.100.9:4000", 1),
		socket("[::ffff:192.0.2.1]:80", "[::ffff:198.51.100.9]:4001", 1),
		socket("[fe80::1]:80", "[fe80::2]:4000", 1),
		socket("192.0.2.1:80", "127.0.0.6:5000", 1), // connection from Envoy to the application
		socket("127.0.0.6:5000", "192.0.2.1:80", 7),
		socket("192.0.2.1:80", "198.51.100.9:4002", 7), // Envoy's downstream connection with TPROXY
		socket("127.0.0.1:80", "127.0.0.1:5001", 1),
		socket("192.0.2.1:81", "198.51.100.9:4003", 1),
	})
	want := []PreInterceptionConnections{{80, netip.MustParseAddr("198.51.100.9"), 2}, {80,
		netip.MustParseAddr("fe80::2"), 1}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}
