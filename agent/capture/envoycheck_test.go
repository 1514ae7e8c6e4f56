package capture

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/sockdiag"
)

// A user can bind what Envoy leaves free, such as ::1. It must not end the capture of IPv4.
func TestEnvoyCheck_StrangersTakeOnlyTheirFamily(t *testing.T) {
	listener := func(user uint32, address string) sockdiag.Socket {
		return sockdiag.Socket{UID: user, Address: netip.MustParseAddrPort(address)}
	}
	four := []sockdiag.Socket{listener(envoyUser, "0.0.0.0:15001"),
		listener(envoyUser, "0.0.0.0:15006")}
	dual := []sockdiag.Socket{listener(envoyUser, "[::]:15001"), listener(envoyUser, "[::]:15006")}
	ipv6 := listener(appUser, "[::]:15001")
	ipv6.IPv6Only = true
	for _, test := range []struct {
		name     string
		envoy    []sockdiag.Socket
		stranger sockdiag.Socket
		want     Families
	}{
		{"::1", four, listener(appUser, "[::1]:15001"), Families{IPv4: true}},
		{"::1 for inbound", four, listener(appUser, "[::1]:15006"), Families{IPv4: true}},
		{"all of IPv6", four, ipv6, Families{IPv4: true}},
		{"::1 beside both", dual, listener(appUser, "[::1]:15001"), Families{IPv4: true}},
		{"IPv4", four, listener(appUser, "127.0.0.1:15001"), Families{}},
		{"mapped IPv4", dual, listener(appUser, "[::ffff:127.0.0.1]:15006"), Families{IPv6: true}},
		{"both", dual, listener(appUser, "[::]:15001"), Families{}},
		{"without Envoy", nil, listener(appUser, "[::1]:15001"), Families{}},
	} {
		check := envoyCheck{user: envoyUser}
		got, reason := check.judge(time.Now(), append([]sockdiag.Socket{test.stranger}, test.envoy...))
		if got != test.want || strings.HasPrefix(reason, "user ") == got.any() || check.gone {
			t.Errorf("%s: %+v, %q, gone %t; want %+v", test.name, got, reason, check.gone, test.want)
		}
	}
}
