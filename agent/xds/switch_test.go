package xds

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"outrider.org/outrider/scripts/parts"
)

// greeter is a service that sends its own name on each connection.
type greeter string

func (g greeter) Serve(_ context.Context, bound net.Listener, _ ...grpc.ServerOption) error {
	for {
		connection, err := bound.Accept()
		if err != nil {
			return nil //nolint:nilerr // ctx ended
		}
		_, _ = io.WriteString(connection, string(g))
		_ = connection.Close()
	}
}

// withoutDescriptors is a listener whose first Accept fails as if the process had no file
// descriptor left.
type withoutDescriptors struct {
	net.Listener
	failed bool
}

func (l *withoutDescriptors) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return l.Listener.Accept()
}

func TestSwitch_ServesNewConnectionsWithTheSelectedService(t *testing.T) {
	path := filepath.Join(parts.ShortDir(t), "socket")
	bound, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &ServiceSwitch{Embedded: greeter("embedded"), Relay: greeter("relay"),
		Logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, &withoutDescriptors{Listener: bound}) }()
	for _, relay := range []bool{false, true, false} {
		s.UseRelay(relay)
		connection, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(connection)
		if err != nil || (string(got) == "relay") != relay {
			t.Errorf("relay %v: %q answers, error %v", relay, got, err)
		}
		_ = connection.Close()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if connection, err := net.Dial("unix", path); err == nil {
		_ = connection.Close()
		t.Error("the socket is still served")
	}
}

// TestSwitch_SurvivesALackOfDescriptors checks that connections wait while the process has no file
// descriptor left, and are served afterwards. The test runs in a process of its own, because other
// tests' connections could free a descriptor.
func TestSwitch_SurvivesALackOfDescriptors(t *testing.T) {
	if !parts.RerunInOwnNetwork(t) {
		return
	}
	path := filepath.Join(parts.ShortDir(t), "socket")
	bound, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var log parts.SyncBuffer
	s := &ServiceSwitch{Embedded: greeter("embedded"), Relay: greeter("relay"),
		Logger: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, bound) }()
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(client) }()

	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	var taken []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	free := sync.OnceFunc(func() {
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	})
	defer free()
	if err := unix.Connect(client, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, time.Minute, "the lack is logged", func() bool {
		return strings.Contains(log.String(), "too many open files")
	})
	free()
	answer := make([]byte, 8)
	if n, err := unix.Read(client, answer); err != nil || string(answer[:n]) != "embedded" {
		t.Errorf("%q, %v", answer[:n], err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
