package hostconflict

import (
	"net/netip"
	"testing"

	"outrider.org/outrider/agent/sockdiag"
)

func TestHolder(t *testing.T) {
	for _, test := range []struct {
		at     string // address that Envoy binds
		ipv4   bool
		socket string
		v6only bool
		want   bool
	}{
		{at: "0.0.0.0:80", socket: "0.0.0.0:80", want: true},
		{at: "0.0.0.0:80", socket: "127.0.0.1:80", want: true},
		{at: "10.0.0.1:80", socket: "0.0.0.0:80", want: true},
		{at: "10.0.0.1:80", socket: "10.0.0.2:80"},
		{at: "0.0.0.0:80", socket: "0.0.0.0:81"},
		{at: "0.0.0.0:80", socket: "[::]:80", want: true},
		{at: "10.0.0.1:80", socket: "[::]:80", v6only: true},
		{at: "10.0.0.1:80", socket: "[::1]:80"},
		{at: "10.0.0.1:80", socket: "[::ffff:10.0.0.1]:80", want: true},
		{at: "[::]:80", socket: "0.0.0.0:80"},
		{at: "[::]:80", ipv4: true, socket: "0.0.0.0:80", want: true},
		{at: "[::]:80", socket: "[::1]:80", want: true},
		{at: "[fd00::1]:80", socket: "[::]:80", v6only: true, want: true},
		{at: "[fd00::1]:80", ipv4: true, socket: "0.0.0.0:80"},
	} {
		_, got := FindPortHolder(netip.MustParseAddrPort(test.at), test.ipv4, []sockdiag.Socket{
			{Address: netip.MustParseAddrPort(test.socket), IPv6Only: test.v6only}})
		if got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
