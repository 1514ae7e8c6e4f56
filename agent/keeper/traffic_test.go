package keeper

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// countTraffic distinguishes connections of clients from those to upstreams, whatever their ports,
// and also after the listener was closed.
func TestTraffic_Downstream(t *testing.T) {
	admin := parts.ShortDir(t)
	metrics, ready := parts.FreePort(t), parts.FreePort(t)
	own := []netip.AddrPort{netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", metrics)),
		netip.MustParseAddrPort(fmt.Sprintf("0.0.0.0:%d", ready))}
	measure := func(pid int) traffic {
		t.Helper()
		found, err := countTraffic(map[int][]netip.AddrPort{pid: own}, admin, nil)
		if err != nil {
			t.Fatal(err)
		}
		return *found[pid]
	}
	before := measure(os.Getpid())
	for name, test := range map[string]struct {
		network, address        string
		established, downstream uint64
	}{
		"a port outside of the kernel's range": {"tcp",
			fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)), 2, 1},
		"one within":       {"tcp", "127.0.0.1:0", 2, 1},
		"one within, IPv6": {"tcp", "[::1]:0", 2, 1},
		"a Unix socket": {"unix",
			filepath.Join(parts.ShortDir(t), "a socket"), 0, 1},
		"an abstract one":             {"unix", "@" + parts.ShortDir(t), 0, 1},
		"Outrider's own":              {"tcp", fmt.Sprintf("127.0.0.1:%d", metrics), 2, 0},
		"its own, on all addresses":   {"tcp", fmt.Sprintf("127.0.0.1:%d", ready), 2, 0},
		"its port, another's address": {"tcp", fmt.Sprintf("127.0.0.2:%d", metrics), 2, 1},
		"the admin's": {"unix", filepath.Join(admin, "admin-1.sock"), 0,
			0},
	} {
		check := func(when string, established uint64) {
			t.Helper()
			now := measure(os.Getpid())
			if now.established-before.established != established ||
				now.downstream-before.downstream != test.downstream {
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
		// The client has sent its request completely and waits for the answer.
		if tcp, ok := client.(*net.TCPConn); ok {
			if err := tcp.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			parts.Eventually(t, time.Minute, "the other side knows", func() bool {
				return measure(os.Getpid()).established == before.established
			})
			check("half closed", 0)
		}
		_ = client.Close()
		_ = accepted.Close()
	}
	if gone := measure(1 << 30); gone != (traffic{}) {
		t.Errorf("of no process: %+v", gone)
	}
}

// If descriptors of another process cannot be duplicated, the local port of a connection decides
// whether it counts as a client's.
func TestTraffic_UnknownOptions(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // a port above firstChosen
	if err != nil {
		t.Fatal(err)
	}
	var listened listenedPorts
	if _, err := listened.look(); err != nil {
		t.Fatal(err)
	}
	_ = listener.Close() // clients of a closed listener may still be connected
	ports, err := listened.look()
	if err != nil {
		t.Fatal(err)
	}
	own := uint16(listener.Addr().(*net.TCPAddr).Port)
	if !ports[own] {
		t.Errorf("port %d is forgotten", own)
	}
	ports = map[uint16]bool{own: true}
	for port, client := range map[uint16]bool{own: true, 443: true, 8443: true, 65535: false} {
		if got := maybeAccepted(port, ports); got != client {
			t.Errorf("port %d: a client: %v", port, got)
		}
	}
}

// Two processes of a hot restart share the sockets of listeners. A process counts as listening
// until it has closed its own descriptor.
func TestTraffic_Listening(t *testing.T) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	pids := sharedWith(t, file)
	_ = file.Close()
	listening := func() (all []bool) {
		found, err := countTraffic(map[int][]netip.AddrPort{pids[0]: nil, pids[1]: nil}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			all = append(all, found[pid].listening)
		}
		return all
	}
	if all := listening(); !slices.Equal(all, []bool{true, true}) {
		t.Errorf("both have it: %v", all)
	}
	_ = unix.Kill(pids[1], unix.SIGUSR1) // the second process closes its socket
	parts.Eventually(t, time.Minute, "one has closed it",
		func() bool { return slices.Equal(listening(), []bool{true, false}) })
	_ = listener.Close()
}

// sharedWith starts two processes that share a socket; the second closes it on SIGUSR1.
func sharedWith(t *testing.T, file *os.File) (pids []int) {
	t.Helper()
	for range 2 {
		holder := exec.Command("bash", "-c",
			`trap 'exec 3>&-' USR1; echo ready; while :; do sleep 0.05; done`)
		holder.ExtraFiles = []*os.File{file}
		out, err := holder.StdoutPipe()
		if err == nil {
			err = holder.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = holder.Process.Kill()
			_ = holder.Wait()
		})
		if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, holder.Process.Pid)
	}
	return pids
}

// All connections of an Envoy that serves UDP count as those of clients, because UDP requests may
// be in flight.
func TestTraffic_DownstreamOfUDP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	// The server's end is never accepted, so only the client's end counts: as a connection to an
	// upstream.
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for name, test := range map[string]struct {
		reusePort int
		port      int
		all       bool
	}{
		"a client":     {0, 0, false},
		"Envoy's":      {1, 0, true},
		"a fixed port": {1, parts.FreePort(t), true},
	} {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, test.reusePort)
		if err = errors.Join(err, unix.Bind(socket, &unix.SockaddrInet4{Port: test.port,
			Addr: [4]byte{127, 0, 0, 1}})); err != nil {
			t.Fatal(err)
		}
		// A hot restart passes the sockets on: two processes have them.
		file := os.NewFile(uintptr(socket), "datagrams")
		heir := exec.Command("sleep", "60")
		heir.ExtraFiles = []*os.File{file}
		if err := heir.Start(); err != nil {
			t.Fatal(err)
		}
		// Wait until the child executes its program, which closes other descriptors of this
		// process.
		for name := ""; name != "sleep\n"; {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", heir.Process.Pid))
			if name = string(text); err != nil {
				t.Fatal(err)
			}
		}
		found, err := countTraffic(map[int][]netip.AddrPort{os.Getpid(): nil, heir.Process.Pid: nil},
			"", nil)
		now := found[os.Getpid()]
		if err != nil || now.established == 0 || (now.downstream >= now.established) != test.all {
			t.Errorf("%s: %+v, %v", name, now, err)
		}
		_ = file.Close()
		_ = heir.Process.Kill()
		_ = heir.Wait()
	}
}
