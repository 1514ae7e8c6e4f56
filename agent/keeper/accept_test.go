package keeper

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// After StopEnvoysAccepting, new connections are refused and established ones are served.
func TestStopAccepting(t *testing.T) {
	l := newLab(t)
	port := parts.FreePort(t)
	l.startEnvoy(0, envoyOptions{port: port}).live()
	inside, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inside.Close() }()
	for range 2 { // the agent may repeat the call
		if err := l.client.StopEnvoysAccepting(l.context()); err != nil {
			t.Fatal(err)
		}
	}
	if answer, err := get(port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %q, %v", answer, err)
	}
	if _, err := fmt.Fprint(inside,
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4096)
	if n, err := inside.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]),
		"HTTP/1.1 200") {
		t.Errorf("the connection that was there: %q, %v", answer[:n], err)
	}
}

// unplug needs no privilege, and connections in the queue of the socket remain.
func TestUnplug_NeedsNoPrivilege(t *testing.T) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false) // Envoy's listeners use plain TCP
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	waiting, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := withoutPrivilege(func() error { return unplug(int(file.Fd())) }); err != nil {
		t.Fatal(err)
	}
	if connection, err := net.Dial("tcp", listener.Addr().String()); !errors.Is(err,
		syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v, %v", connection, err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = accepted.Close()
}

// withoutPrivilege calls do on a thread that has the user nobody and no capabilities.
func withoutPrivilege(do func() error) error {
	const nobody = 65534
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 &&
			os.Geteuid() == 0 {
			result <- fmt.Errorf("become nobody: %w", errno)
			return
		}
		result <- do()
	}()
	return <-result
}

// unaccepted counts connections in the accept queue and handshakes. With TCP_DEFER_ACCEPT a
// handshake remains open until the client sends data.
func TestUnaccepted_CountsQueueAndHandshakes(t *testing.T) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	listen := func(network, address string) *net.TCPListener {
		listener, err := config.Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		return listener.(*net.TCPListener)
	}
	shared := listen("tcp4", "127.0.0.1:0")
	port := shared.Addr().(*net.TCPAddr).Port
	other, six, apart := listen("tcp4", fmt.Sprintf("127.0.0.2:%d", port)),
		listen("tcp6", "[::1]:0"), listen("tcp4", "127.0.0.1:0")
	defers := func(l *net.TCPListener, seconds int) {
		raw, err := l.SyscallConn()
		if err == nil {
			err = raw.Control(func(descriptor uintptr) {
				if err := unix.SetsockoptInt(int(descriptor), unix.IPPROTO_TCP,
					unix.TCP_DEFER_ACCEPT, seconds); err != nil {
					t.Error(err)
				}
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	connect := func(l *net.TCPListener, times int) {
		for range times {
			connection, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = connection.Close() })
		}
	}
	connect(shared, 3)
	connect(six, 1)
	defers(shared, 30)
	connect(shared, 1)
	defers(apart, 30)
	connect(apart, 2)

	inode := func(l *net.TCPListener) uint32 {
		file, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		var status unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &status); err != nil {
			t.Fatal(err)
		}
		return uint32(status.Ino)
	}
	got := map[string]int{}
	for name, listeners := range map[string][]*net.TCPListener{"one port": {shared, other},
		"IPv6": {six}, "handshakes": {apart}, "nobody comes": {}} {
		inodes := map[uint32]uint16{math.MaxUint32: 1}
		for _, l := range listeners {
			inodes[inode(l)] = uint16(l.Addr().(*net.TCPAddr).Port)
		}
		waiting, err := unaccepted(inodes)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = waiting
	}
	want := map[string]int{"one port": 4, "IPv6": 1, "handshakes": 2, "nobody comes": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
