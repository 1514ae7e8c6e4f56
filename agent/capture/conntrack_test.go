package capture

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

func TestForgetQueries_DNSSocketsInUseFollowTheRules(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	trackAll(t)
	newHostsWithoutEnvoy(t).RunOn(t, func() {
		for _, resolver := range far {
			datagrams(t, net.JoinHostPort(resolver, "53"), answerOf("far"))
		}
	})
	for _, address := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		datagrams(t, address, answerOf("proxy"))
	}
	socket, err := newOwnerSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	resolvers := []netip.Addr{netip.MustParseAddr(far[0]), netip.MustParseAddr(far[1])}
	used := []net.Conn{hold(t, far[0]), hold(t, far[1])}
	check := func(when, want string) {
		t.Helper()
		for i, s := range used {
			if got := exchange(t, s); got != want {
				t.Errorf("%s: resolver %s: got %q, want %q", when, resolvers[i], got, want)
			}
		}
	}
	for _, s := range used { // retried, because the other host's IPv6 may not be ready yet
		parts.Eventually(t, time.Minute, "the resolver answers",
			func() bool { return exchange(t, s) == "far" })
	}
	table := dnsRules(&captureDNS, testUsers, resolvers, nil)
	if err := socket.install(table); err != nil {
		t.Fatal(err)
	}
	check("still direct", "far")
	for _, step := range []struct {
		redirected bool
		want       string
	}{{true, "far"}, {false, "proxy"}, {false, "proxy"}} {
		if err := socket.forgetQueries(resolvers, step.redirected); err != nil {
			t.Fatal(err)
		}
		check("redirected", step.want)
	}
	if err := socket.remove(table.Name); err != nil {
		t.Fatal(err)
	}
	check("still redirected", "proxy")
	if err := socket.forgetQueries(resolvers, true); err != nil {
		t.Fatal(err)
	}
	check("direct again", "far")
}

// trackAll makes the kernel track and translate connections, independently of Outrider's rules.
func trackAll(t *testing.T) {
	t.Helper()
	run(t, "table inet other { chain output { type nat hook output priority 0; ct state new; }; }",
		"nft", "-f", "-")
}

// hold returns an open UDP socket of the application's user, connected to a resolver.
func hold(t *testing.T, resolver string) (socket net.Conn) {
	t.Helper()
	parts.RunAs(t, appUser, func() {
		var err error
		if socket, err = net.Dial("udp", net.JoinHostPort(resolver, "53")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = socket.Close() })
	})
	return socket
}
