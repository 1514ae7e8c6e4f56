package mesh

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// sockets are real sockets with a fake supervisor.
type sockets struct {
	*Sockets
	folder string
	mu     sync.Mutex
	live   []epoch.Epoch
	broken chan error // makes Serve return an error
}

// The methods below implement Service and Supervisor.

func (s *sockets) Serve(ctx context.Context, bound net.Listener, _ ...grpc.ServerOption) error {
	defer func() { _ = bound.Close() }()
	select {
	case err := <-s.broken:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (s *sockets) Epochs() []epoch.Epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.live)
}

func (s *sockets) Changed() <-chan struct{} { return nil }

func newSockets(t *testing.T) *sockets {
	t.Helper()
	s := &sockets{folder: parts.ShortDir(t), broken: make(chan error, 1)}
	s.Sockets = &Sockets{
		listen: func(path string) (net.Listener, error) {
			return xds.Listen(xds.ListenOptions{Path: path})
		},
		server: s, supervisor: s, log: slog.New(slog.DiscardHandler),
		key: "xds.socket", path: func(c *config.Config) string { return c.XDS.Socket },
	}
	if err := s.start(filepath.Join(s.folder, "a")); err != nil {
		t.Fatal(err)
	}
	return s
}

// now replaces the epochs: "hash" is live, "hash-" drains.
func (s *sockets) now(hashes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = []epoch.Epoch{{Hash: "ended", State: epoch.Exited}}
	for _, hash := range hashes {
		e := epoch.Epoch{Hash: hash, State: epoch.Live}
		if name, drains := strings.CutSuffix(hash, "-"); drains {
			e.Hash, e.State = name, epoch.Draining
		}
		s.live = append(s.live, e)
	}
}

func (s *sockets) at(name string) *config.Loaded {
	if !filepath.IsAbs(name) {
		name = filepath.Join(s.folder, name)
	}
	return &config.Loaded{Config: &config.Config{XDS: config.XDS{Socket: name}},
		Sources: map[string]config.Position{"xds.socket": {File: "outrider.toml", Line: 3,
			Column: 1}}}
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

func (s *sockets) reload(t *testing.T, id uint64, hash, name string, commits bool) {
	t.Helper()
	if err := s.Hold(id, hash, s.at(name)); err != nil {
		t.Fatal(err)
	}
	if commits {
		s.Configure(hash, s.at(name).Config)
	}
	s.Release(id)
}

func TestSocketsLiveAsLongAsTheirEpochs(t *testing.T) {
	s := newSockets(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.reload(t, 1, "1", "a", true)
	s.reload(t, 2, "2", "b", false)
	s.expect(t, "no epoch is live, and what was refused may be tried again", "a", "b")
	s.now("1")
	s.Release(2)
	s.expect(t, "the refused one's is closed before any is served", "a")

	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if err := s.Hold(3, "3", s.at("b")); err != nil {
		t.Fatal(err)
	}
	s.reload(t, 4, "3", "b", false)
	s.expect(t, "another reload wants it still", "a", "b")
	s.now("1-", "3")
	s.Configure("3", s.at("b").Config)
	s.Release(3)
	s.expect(t, "the older epoch lives", "a", "b")
	s.reload(t, 5, "5", "c", false)
	s.expect(t, "one that is refused meanwhile", "a", "b")
	s.now("3")
	s.Release(0)
	s.expect(t, "the older epoch has ended", "b")
	s.reload(t, 6, "6", "a", true)
	s.now("6", "3-")
	s.Release(0)
	s.expect(t, "back again", "a", "b")
	s.reload(t, 7, "6", "c", true)
	s.expect(t, "the same Envoy, which asks nobody, at another path", "a", "b", "c")
	s.now("6")
	s.Release(0)
	s.expect(t, "and once the older one has ended", "a", "c")

	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.expect(t, "the agent has ended")
	if err := s.Hold(8, "8", s.at("d")); err == nil {
		t.Error("a socket is bound once the agent has ended")
	}
}

func TestTheSocketOfAnEarlierAgentsEpochs(t *testing.T) {
	s := newSockets(t)
	s.now("unknown")
	s.reload(t, 1, "1", "b", true)
	s.now("unknown-", "1")
	s.Release(0)
	s.expect(t, "an adopted epoch lives", "a", "b")
	s.now("1")
	s.Release(0)
	s.expect(t, "it has ended", "b")
}

func TestASocketThatCannotBeHad(t *testing.T) {
	s := newSockets(t)
	s.now("1")
	for name, says := range map[string]string{"none/x": "make the folder ",
		strings.Repeat("x", 90): "shorten it"} {
		err := s.Hold(1, "2", s.at(name))
		if list, ok := errors.AsType[config.Errors](err); !ok || len(list) != 1 ||
			!strings.HasPrefix(list[0].Error(), "outrider.toml:3:1: xds.socket: ") ||
			!strings.Contains(list[0].Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
		s.Release(1)
	}
	s.expect(t, "after what was refused", "a")

	failed := errors.New("broken")
	s.broken <- failed
	if err := s.Run(t.Context()); !errors.Is(err, failed) {
		t.Errorf("a socket that fails ends its part with %v", err)
	}
	s.expect(t, "after it has failed")
}

func TestASocketUnderAnotherSpellingOfItsPath(t *testing.T) {
	s := newSockets(t)
	link := filepath.Join(parts.ShortDir(t), "link")
	if err := os.Symlink(s.folder, link); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(link, "a")
	s.reload(t, 1, "1", "a", true)
	s.now("1")
	if err := s.Hold(2, "2", s.at(other)); err != nil { // before Run
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
	s.Release(2)
	answers("the other spelling is refused", filepath.Join(s.folder, "a"))
	s.reload(t, 3, "3", other, true)
	answers("it is in force, and both live", other)
	s.now("3")
	s.Release(0)
	answers("nobody uses the first spelling", other)
	s.reload(t, 4, "4", "a", true)
	s.now("4")
	s.Release(0)
	answers("back again", filepath.Join(s.folder, "a"))
	s.reload(t, 5, "5", "b", true)
	s.now("5")
	s.Release(0)
	s.expect(t, "nobody uses either", "b")

	if err := os.Symlink("b", filepath.Join(s.folder, "c")); err != nil {
		t.Fatal(err)
	}
	if err := s.Hold(6, "6", s.at("c")); err == nil ||
		!strings.Contains(err.Error(), "something else than a socket") {
		t.Errorf("a link in the socket's place, where none could be made at the next start: %v",
			err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.expect(t, "the agent has ended", "c")
}
