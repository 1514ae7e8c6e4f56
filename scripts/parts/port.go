package parts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	firstPort = 10000
	// The kernel assigns higher ports to outgoing connections and to listeners with port 0
	// (ip_local_port_range).
	lastPort = 32767
	// first of the hundred default ports of Outrider and Istio, which an agent on this machine may
	// use
	agentPort = 15000
)

// OccupiedPort returns a TCP port on which the test listens on all IPv4 addresses until release is
// called.
func OccupiedPort(t testing.TB) (port int, release func()) {
	t.Helper()
	port = FreePort(t)
	listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return port, func() { _ = listener.Close() }
}

// FreePort returns a TCP port that is free on all addresses. It is reserved for the caller until
// the test ends: the kernel does not assign it to outgoing connections, and no other test receives
// it, not even in another process. An abstract Unix socket, named after the port, is the
// reservation (lease). Like the port, it belongs to the network namespace, and the kernel removes
// it with the process.
func FreePort(t testing.TB) int {
	t.Helper()
	const count = lastPort - firstPort + 1
	start := rand.IntN(count)
	for i := range count {
		port := firstPort + (start+i)%count
		if port >= agentPort && port < agentPort+100 {
			continue
		}
		lease, err := leasePort(port)
		if err != nil {
			t.Fatal(err)
		}
		if lease < 0 {
			continue
		}
		t.Cleanup(func() { _ = unix.Close(lease) })
		listener, err := net.Listen("tcp",
			fmt.Sprintf(":%d",
				port)) //nolint:gosec // of all addresses none may be taken; closed at once
		if err != nil {
			continue
		}
		_ = listener.Close()
		return port
	}
	t.Fatalf("no free port between %d and %d", firstPort, lastPort)
	return 0
}

// leasePort reserves a port and returns the descriptor of the lease, or -1 if another test has
// reserved it.
func leasePort(port int) (int, error) {
	lease, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("lease port %d: %w", port, err)
	}
	err = unix.Bind(lease, &unix.SockaddrUnix{Name: fmt.Sprintf("@outrider-test-port-%d", port)})
	if err == nil {
		return lease, nil
	}
	_ = unix.Close(lease)
	if errors.Is(err, unix.EADDRINUSE) {
		return -1, nil
	}
	return -1, fmt.Errorf("lease port %d: %w", port, err)
}
