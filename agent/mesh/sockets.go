package mesh

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/xds"
)

// Sockets owns the sockets of an xDS server: that of the configuration in force, those of reloads
// in progress, and those that living epochs were started with. It closes and removes any other.
type Sockets struct {
	listen     func(path string) (net.Listener, error)
	server     Service
	supervisor Supervisor
	log        *slog.Logger
	key        string
	path       func(*config.Config) string
	failed     chan error // of a socket that is served; holds one

	mu      sync.Mutex
	running context.Context    // of Run; nil: sockets are bound, and served once it runs
	open    map[string]*socket // by path; one may be there under several spellings of its own
	// path of the start: also that of epochs of an earlier agent, whose own is not known
	first   string
	inForce use
	asked   map[uint64]use // by reload under way
	uses    map[use]bool   // of epochs that may live
}

// use is the path that epochs of a spec ask at.
type use struct{ hash, path string }

// socket is one that is bound.
type socket struct {
	bound  net.Listener
	cancel context.CancelFunc // nil: it is not served yet
	ended  chan struct{}      // closed when it is served no more
}

// Options of Sockets.
type Options struct {
	Key        string                      // that names the socket in the configuration
	Path       func(*config.Config) string // of the socket; "": none is needed
	Start      *config.Config              // whose socket is bound at once
	Group      int                         // that may connect; 0: the agent's own
	Users      []uint32                    // that may connect; none: whom the mode lets in
	Server     Service
	Supervisor Supervisor
	Logger     *slog.Logger
}

// Service is the xDS server. Serve serves until ctx ends and closes the listener.
type Service interface {
	Serve(ctx context.Context, bound net.Listener, options ...grpc.ServerOption) error
}

// Supervisor knows the epochs. Changed returns a channel that is closed at the next change.
type Supervisor interface {
	Epochs() []epoch.Epoch
	Changed() <-chan struct{}
}

// NewSockets binds the socket of the start.
func NewSockets(o Options) (*Sockets, error) {
	connections := newConnections()
	s := &Sockets{
		listen: func(path string) (net.Listener, error) {
			bound, err := xds.Listen(xds.ListenOptions{
				Path: path, Group: o.Group, Users: o.Users, Logger: o.Logger,
			})
			if err != nil {
				return nil, err
			}
			return limit(bound, connections), nil
		},
		server: o.Server, supervisor: o.Supervisor, log: o.Logger,
		key: o.Key, path: o.Path,
	}
	if err := s.start(s.pathOf(o.Start)); err != nil {
		return nil, err
	}
	return s, nil
}

// pathOf returns the path of a configuration's socket, "" if it needs none.
func (s *Sockets) pathOf(c *config.Config) string {
	if path := s.path(c); path != "" {
		return filepath.Clean(path)
	}
	return ""
}

// start binds the socket of the start.
func (s *Sockets) start(path string) error {
	s.failed, s.open = make(chan error, 1), map[string]*socket{}
	s.first, s.inForce = path, use{path: path}
	s.asked, s.uses = map[uint64]use{}, map[use]bool{}
	return s.bind(path)
}

// Name is the part's name.
func (s *Sockets) Name() string { return "xds" }

// Run serves on the sockets until ctx ends, and closes those that are used no more.
func (s *Sockets) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.running = ctx
	for _, socket := range s.open {
		if socket.cancel == nil {
			s.begin(socket)
		}
	}
	s.mu.Unlock()
	defer func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		for path := range s.open {
			s.shut(path)
		}
	}()
	for {
		changed := s.supervisor.Changed() // before the look: nothing is missed
		s.mu.Lock()
		s.sweep()
		s.mu.Unlock()
		select {
		case <-changed:
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// Hold binds the socket of a configuration, for a reload that may start an epoch with the given
// digest, until Release. Its error has the position of the key.
func (s *Sockets) Hold(reload uint64, hash string, loaded *config.Loaded) error {
	use := use{hash, s.pathOf(loaded.Config)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(use.path); err != nil {
		return config.Errors{loaded.Fault(s.key, err.Error(), cureOfSocket(err, use.path))}
	}
	s.asked[reload], s.uses[use] = use, true
	return nil
}

// cureOfSocket is what helps where a socket cannot be bound and the error does not say it.
func cureOfSocket(err error, path string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "make the folder " + filepath.Dir(path) + ", which the agent writes and Envoy reads"
	case errors.Is(err, fs.ErrPermission):
		return "let the agent's user write the folder " + filepath.Dir(path)
	}
	return "or take another path"
}

// Configure makes the socket of the configuration in force the one of epochs with the given digest.
func (s *Sockets) Configure(hash string, c *config.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce = use{hash, s.pathOf(c)}
	s.uses[s.inForce] = true
}

// Release ends what Hold began.
func (s *Sockets) Release(reload uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asked, reload)
	s.sweep()
}

// bind binds a path, unless it is, and serves on it once Run does. Callers hold mu, as of all that
// follow.
func (s *Sockets) bind(path string) error {
	if path == "" || s.open[path] != nil {
		return nil
	}
	if s.running != nil && s.running.Err() != nil {
		return context.Cause(s.running)
	}
	if socket := s.sameAs(path); socket != nil {
		s.open[path] = socket
		return nil
	}
	bound, err := s.listen(path)
	if err != nil {
		return err
	}
	s.open[path] = &socket{bound: bound, ended: make(chan struct{})}
	if s.running != nil {
		s.begin(s.open[path])
		s.log.Info("serving xDS on another socket", "socket", path)
	}
	return nil
}

// sameAs is the socket that is open at a path under another spelling of it (/var/run for /run);
// nil: none is.
func (s *Sockets) sameAs(path string) *socket {
	// not what a link in the socket's place leads to: the next start could not listen there
	there, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	for spelling, socket := range s.open {
		if file, err := os.Lstat(spelling); err == nil && os.SameFile(file, there) {
			return socket
		}
	}
	return nil
}

// begin serves on a socket that is bound.
func (s *Sockets) begin(socket *socket) {
	ctx, cancel := context.WithCancel(s.running)
	socket.cancel = cancel
	go func() {
		defer close(socket.ended)
		if err := s.server.Serve(ctx, socket.bound); err != nil {
			select {
			case s.failed <- err:
			default: // one is enough to end the agent
			}
		}
	}()
}

// shut closes a socket, and returns once it is gone; false: it is used under another spelling of
// its path, and stays.
func (s *Sockets) shut(path string) bool {
	socket := s.open[path]
	delete(s.open, path)
	if slices.Contains(slices.Collect(maps.Values(s.open)), socket) {
		return false
	}
	if socket.cancel != nil {
		socket.cancel()
		<-socket.ended
	} else if err := socket.bound.Close(); err != nil {
		s.log.Warn("a socket that is used no more", "socket", path, "error", err)
	}
	return true
}

// sweep closes what nobody uses any more. While no epoch is live nothing is: the supervisor may
// start what was tried before.
func (s *Sockets) sweep() {
	living, live := map[string]bool{}, false
	for _, e := range s.supervisor.Epochs() {
		if e.State != epoch.Exited {
			living[e.Hash] = true
			live = live || e.State.Serves()
		}
	}
	if !live {
		return
	}
	needed, pending := map[string]bool{s.inForce.path: true}, map[use]bool{}
	for _, use := range s.asked {
		pending[use] = true
	}
	known := map[string]bool{}
	for use := range s.uses {
		if !living[use.hash] && !pending[use] && use != s.inForce {
			delete(s.uses, use)
			continue
		}
		known[use.hash], needed[use.path] = true, true
	}
	for hash := range living {
		if !known[hash] {
			needed[s.first] = true
		}
	}
	for path := range s.open {
		if !needed[path] && s.shut(path) {
			s.log.Info("xDS is served no more on a socket that no epoch uses", "socket", path)
		}
	}
}
