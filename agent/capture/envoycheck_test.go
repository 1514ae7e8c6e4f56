package capture

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/sockdiag"
	"outrider.org/outrider/scripts/parts"
)

// Any user can bind an address that Envoy leaves free, such as ::1. This must not end the capture
// of IPv4.
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
		want     AddressFamilies
	}{
		{"::1", four, listener(appUser, "[::1]:15001"), AddressFamilies{IPv4: true}},
		{"::1 for inbound", four, listener(appUser, "[::1]:15006"), AddressFamilies{IPv4: true}},
		{"all of IPv6", four, ipv6, AddressFamilies{IPv4: true}},
		{"::1 beside both", dual, listener(appUser, "[::1]:15001"), AddressFamilies{IPv4: true}},
		{"IPv4", four, listener(appUser, "127.0.0.1:15001"), AddressFamilies{}},
		{"mapped IPv4", dual, listener(appUser, "[::ffff:127.0.0.1]:15006"),
			AddressFamilies{IPv6: true}},
		{"both", dual, listener(appUser, "[::]:15001"), AddressFamilies{}},
		{"without Envoy", nil, listener(appUser, "[::1]:15001"), AddressFamilies{}},
	} {
		check := envoyCheck{user: envoyUser}
		got, reason := check.evaluate(append([]sockdiag.Socket{test.stranger}, test.envoy...))
		if got != test.want || strings.HasPrefix(reason, "user ") == got.any() || check.gone {
			t.Errorf("%s: %+v, %q, gone %t; want %+v", test.name, got, reason, check.gone, test.want)
		}
	}
}

// slowEnvoy has listeners of Envoy's user whose accept queues are never empty.
type slowEnvoy struct {
	t         *testing.T
	check     envoyCheck
	now       time.Time
	listeners map[uint16]net.Listener
}

func newSlowEnvoy(t *testing.T) *slowEnvoy {
	t.Helper()
	e := &slowEnvoy{t: t, check: envoyCheck{user: envoyUser}, now: time.Now(),
		listeners: map[uint16]net.Listener{}}
	t.Cleanup(func() { e.check.stall.reset() })
	for _, port := range []uint16{OutboundPort, InboundPort} {
		parts.RunAs(t, envoyUser, func() {
			l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			e.listeners[port] = l
		})
		e.dial(port)
	}
	return e
}

func (e *slowEnvoy) dial(port uint16) net.Conn {
	e.t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// accept accepts one connection as Envoy does.
func (e *slowEnvoy) accept(port uint16) (c net.Conn) {
	e.t.Helper()
	parts.RunAs(e.t, envoyUser, func() {
		var err error
		if c, err = e.listeners[port].Accept(); err != nil {
			e.t.Fatal(err)
		}
	})
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// serves calls step and look every checkEvery of simulated time, and reports whether Envoy counted
// as serving throughout the second half.
func (e *slowEnvoy) serves(limit time.Duration, step func()) bool {
	e.t.Helper()
	serves := true
	for passed := time.Duration(0); passed < limit; passed += checkEvery {
		e.now = e.now.Add(checkEvery)
		step()
		families, _ := e.check.look(e.now)
		serves = serves && families.any() || passed < limit/2
	}
	return serves
}

// An Envoy that accepts connections counts as serving although its accept queue is never empty: the
// queue may have length 1 at each check, with another connection each time.
func TestEnvoyCheck_QueueThatNeverEmptiesIsNoStall(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	e := newSlowEnvoy(t)
	if !e.serves(4*stallLimit, func() {
		for _, port := range []uint16{OutboundPort, InboundPort} {
			e.dial(port)
			e.accept(port)
		}
	}) {
		t.Error("an Envoy that accepts one connection after the other is taken for a stopped one")
	}
}

func TestEnvoyCheck_StallEndsWithProgress(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	e := newSlowEnvoy(t)
	client := e.dial(InboundPort)
	e.accept(InboundPort) // the connection that newSlowEnvoy opened
	end := e.accept(InboundPort)
	if _, err := client.Write(make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		step   func()
		serves bool
	}{
		{"accepts others", func() { e.dial(InboundPort); e.accept(InboundPort) }, true},
		{"accepts nothing", func() {}, false},
		{"clients give up", func() {
			c := e.dial(InboundPort)
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}, false},
		{"reads", func() { _, _ = end.Read(make([]byte, 1)) }, true},
	} {
		if e.serves(3*stallLimit, test.step) != test.serves {
			t.Errorf("%s: serves is %t", test.name, !test.serves)
		}
	}
	e.accept(OutboundPort) // the connection that newSlowEnvoy opened
	e.accept(OutboundPort) // outrider-capture's probe
	if families, reason := e.check.look(e.now); !families.any() {
		t.Errorf("Envoy accepts again: %s", reason)
	}
}
