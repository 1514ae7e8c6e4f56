package capture

import (
	"net/netip"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// TestRoute_ExplainsWhatPassesLo compares explanations for a captured network with the kernel's
// routes: connections that pass lo must not be captured.
func TestRoute_ExplainsWhatPassesLo(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	for _, command := range []string{
		"link add far type veth peer name near", "link set near up", "addr add 198.51.100.1/24 dev far",
		"addr add 2001:db8:1::1/64 dev far nodad", "link set far up",
		"route add 10.1.0.0/16 dev lo", "route add local 10.2.0.0/16 dev lo",
		"route add blackhole 10.3.0.0/16", "-6 route add fd01::/64 dev lo",
		"route add 10.4.0.0/16 dev lo table 7", "rule add uidrange 2004-2004 table 7",
		"route add 10.4.0.0/16 dev far",
	} {
		ip(t, command)
	}
	parts.Eventually(t, time.Minute, "the link is up, and the IPv6 address local", func() bool {
		local, _, err := LookupRoute(netip.MustParseAddr("2001:db8:1::1"), appUser)
		return err == nil && local
	})
	table := buildTable(&captureAll, testUsers, AddressFamilies{true, true}, nil)
	for _, c := range []struct {
		to        string
		user      uint32
		local, lo bool
		key       string
	}{
		{"127.0.0.1", appUser, true, true, ruleLoopback},
		{"::1", appUser, true, true, ruleLoopback},
		{"198.51.100.1", appUser, true, true, ruleLoopback},
		{"::ffff:198.51.100.1", appUser, true, true, ruleLoopback},
		{"2001:db8:1::1", appUser, true, true, ruleLoopback},
		{"198.51.100.2", appUser, false, false, "capture.outbound_cidrs"},
		{"2001:db8:1::2", appUser, false, false, "capture.outbound_cidrs"},
		{"10.1.7.1", appUser, false, true, keyRoute}, // also in exclude_outbound_cidrs
		{"fd01::1", appUser, false, true, keyRoute},
		{"10.2.0.1", appUser, true, true, ruleLoopback},
		{"10.3.0.1", appUser, false, false, "capture.outbound_cidrs"},
		{"10.4.0.1", appUser, false, false, "capture.outbound_cidrs"},
		{"10.4.0.1", otherUser, false, true, keyRoute},
		{"203.0.113.1", appUser, false, false, "capture.outbound_cidrs"}, // no route
	} {
		to := netip.MustParseAddr(c.to)
		local, lo, err := LookupRoute(to, c.user)
		if err != nil || local != c.local || lo != c.lo {
			t.Errorf("%s of %d: local %t, lo %t, %v", c.to, c.user, local, lo, err)
		}
		got := Explain(Connection{Protocol: "tcp", Destination: netip.AddrPortFrom(to.Unmap(), 80),
			UID: c.user, Local: local, ViaLoopback: lo}, table)
		if got.ConfigKey != c.key {
			t.Errorf("%s of %d: %q, want %q", c.to, c.user, got.ConfigKey, c.key)
		}
	}
}
