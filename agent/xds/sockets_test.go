package xds

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"outrider.org/outrider/scripts/parts"
)

// sockets is a Sockets whose server is a fake.
type sockets struct {
	*Sockets
	folder string
	broken chan error // Serve returns an error that is sent here
}

// Serve implements Service.
func (s *sockets) Serve(ctx context.Context, bound net.Listener, _ ...grpc.ServerOption) error {
	defer func() { _ = bound.Close() }()
	select {
	case err := <-s.broken:
		return err
	case <-ctx.Done():
		return nil
	}
}

func newSockets(t *testing.T) *sockets {
	t.Helper()
	s := &sockets{folder: parts.ShortDir(t), broken: make(chan error, 1)}
	var err error
	s.Sockets, err = NewSockets(SocketOptions{Name: "xds.socket", Server: s, Path: s.at("a"),
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *sockets) at(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.folder, name)
}

func (s *sockets) expect(t *testing.T, when string, names ...string) {
	t.Helper()
	var found []string
	entries, err := os.ReadDir(s.folder)
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	if err != nil || !slices.Equal(found, names) {
		t.Errorf("%s: %q, %v, want %q", when, found, err, names)
	}
}

func (s *sockets) reload(t *testing.T, id uint64, name string, commits bool) {
	t.Helper()
	if err := s.BindSocket(id, s.at(name)); err != nil {
		t.Fatal(err)
	}
	if commits {
		s.SetCurrentPath(s.at(name))
	}
	s.ReleaseSockets(id)
}

func TestSockets_LiveWhileInForceBeforeOrPending(t *testing.T) {
	s := newSockets(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.reload(t, 1, "x", false)
	s.expect(t, "one that is refused", "a", "x")
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if err := s.BindSocket(2, s.at("c")); err != nil {
		t.Fatal(err)
	}
	s.reload(t, 3, "b", true)
	s.expect(t, "the epoch before may drain, and another reload wants c", "a", "b", "c")
	s.SetCurrentPath(s.at("c"))
	s.ReleaseSockets(2)
	s.expect(t, "two changes later", "b", "c")
	s.reload(t, 4, "c", true)
	s.expect(t, "a reload that leaves it", "c")

	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.expect(t, "the agent has ended")
	if err := s.BindSocket(8, s.at("d")); err == nil {
		t.Error("a socket is bound once the agent has ended")
	}
}

func TestSockets_CannotBind(t *testing.T) {
	s := newSockets(t)
	for name, says := range map[string]string{"none/x": "no such file",
		strings.Repeat("x", 90): "shorten it"} {
		if err := s.BindSocket(1, s.at(name)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
		s.ReleaseSockets(1)
	}
	s.expect(t, "after what was refused", "a")

	failed := errors.New("broken")
	s.broken <- failed
	if err := s.Run(t.Context()); !errors.Is(err, failed) {
		t.Errorf("a socket that fails ends its part with %v", err)
	}
	s.expect(t, "after it has failed")
}

func TestSockets_OtherSpellingOfThePath(t *testing.T) {
	s := newSockets(t)
	link := filepath.Join(parts.ShortDir(t), "link")
	if err := os.Symlink(s.folder, link); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(link, "a")
	// bound, but not served yet: Run is called later
	if err := s.BindSocket(2, s.at(other)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	answers := func(when, path string) {
		t.Helper()
		s.expect(t, when, "a")
		connection, err := net.Dial("unix", path)
		if err != nil {
			t.Errorf("%s: %v", when, err)
			return
		}
		_ = connection.Close()
	}
	s.ReleaseSockets(2)
	answers("the other spelling is refused", filepath.Join(s.folder, "a"))
	s.reload(t, 3, other, true)
	s.reload(t, 4, other, true)
	answers("nobody uses the first spelling", other)
	s.reload(t, 5, "b", true)
	s.reload(t, 6, "b", true)
	s.expect(t, "nobody uses either", "b")

	if err := os.Symlink("b", filepath.Join(s.folder, "c")); err != nil {
		t.Fatal(err)
	}
	if err := s.BindSocket(7, s.at("c")); err == nil ||
		!strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a link in the socket's place, where none could be made at the next start: %v",
			err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.expect(t, "the agent has ended", "c")
}
