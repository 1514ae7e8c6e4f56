package keeper

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// A client's connection is told from one to an upstream, whatever its port, while it listens and when it does not any more.
func TestDownstream(t *testing.T) {
	admin := parts.ShortDir(t)
	measure := func(pid int) traffic {
		t.Helper()
		found, err := usage{proc: "/proc"}.traffic([]int{pid}, admin)
		if err != nil {
			t.Fatal(err)
		}
		return found[pid]
	}
	before := measure(os.Getpid())
	for name, test := range map[string]struct {
		network, address        string
		established, downstream uint64
	}{
		"a port outside of the kernel's range": {"tcp", fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)), 2, 1},
		"one within":                           {"tcp", "127.0.0.1:0", 2, 1},
		"one within, IPv6":                     {"tcp", "[::1]:0", 2, 1},
		"a Unix socket":                        {"unix", filepath.Join(parts.ShortDir(t), "a socket"), 0, 1},
		"an abstract one":                      {"unix", "@" + parts.ShortDir(t), 0, 1},
		"the admin's":                          {"unix", filepath.Join(admin, "admin-1.sock"), 0, 0},
	} {
		check := func(when string, established uint64) {
			t.Helper()
			now := measure(os.Getpid())
			if now.established-before.established != established || now.downstream-before.downstream != test.downstream {
				t.Errorf("%s, %s: %+v, before %+v", name, when, now, before)
			}
		}
		listener, err := net.Listen(test.network, test.address)
		if err != nil {
			t.Fatal(err)
		}
		client, err := net.Dial(test.network, listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		check("while it listens", test.established)
		_ = listener.Close()
		check("when it has closed", test.established)
		if tcp, ok := client.(*net.TCPConn); ok { // the client has said all, and waits for the answer
			if err := tcp.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			check("half closed", 0)
		}
		_ = client.Close()
		_ = accepted.Close()
	}
	if gone := measure(1 << 30); gone != (traffic{}) {
		t.Errorf("of no process: %+v", gone)
	}
}

// Who serves UDP may have anything in flight.
func TestDownstreamOfUDP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", listener.Addr().String()) // nobody accepts it: one connection is ours, to an upstream
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for _, test := range []struct {
		port int
		all  bool
	}{{0, false}, {parts.FreePort(t), true}} {
		datagrams, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: test.port})
		if err != nil {
			t.Fatal(err)
		}
		found, err := usage{proc: "/proc"}.traffic([]int{os.Getpid()}, "")
		now := found[os.Getpid()]
		if err != nil || now.established == 0 || (now.downstream >= now.established) != test.all {
			t.Errorf("port %d: %+v, %v", test.port, now, err)
		}
		_ = datagrams.Close()
	}
}
