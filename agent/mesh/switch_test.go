package mesh

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"outrider.org/outrider/scripts/parts"
)

// greeter is a service that sends its name on each connection.
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

// withoutDescriptors is a listener whose first accept fails as without a free descriptor.
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
	s := &Switch{Embedded: greeter("embedded"), Relay: greeter("relay"),
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
