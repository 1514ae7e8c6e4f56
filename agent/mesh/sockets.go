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
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/xds"
)

// Sockets owns the Unix sockets of an xDS server: those of the configuration in force, of reloads
// in progress and of running epochs. It closes and removes all others.
type Sockets struct {
	part.Readiness
	listen     func(path string) (net.Listener, error)
	server     Service
	supervisor Supervisor
	log        *slog.Logger
	key        string
	path       func(*config.Config) string
	failed     chan error // buffered: error of a served socket

	mu      sync.Mutex
	running context.Context    // of Run; nil: sockets are bound but not served yet
	open    map[string]*socket // by path; several paths may lead to one socket
	// path at the start, assumed for epochs of an earlier agent
	first   string
	inForce use
	pending map[uint64]use // by ID of the reload in progress
	uses    map[use]bool   // of epochs that may be running
}

// use is the socket path of epochs with a spec hash.
type use struct{ hash, path string }

// socket is a bound socket.
type socket struct {
	bound  net.Listener
	cancel context.CancelFunc // nil if not served yet
	ended  chan struct{}      // closed when serving has ended
}

// Options configures Sockets.
type Options struct {
	Key        string                      // configuration key of the socket
	Path       func(*config.Config) string // returns the path; "" if none is needed
	Start      *config.Config              // its socket is bound by NewSockets
	Group      int                         // group that may connect; 0: the agent's own
	Users      []uint32                    // users that may connect; empty: as the mode allows
	Server     Service
	Supervisor Supervisor
	Logger     *slog.Logger
}

// Service is the xDS server. Serve serves until ctx ends and closes the listener.
type Service interface {
	Serve(ctx context.Context, bound net.Listener, options ...grpc.ServerOption) error
}

// Supervisor lists the epochs. Changed returns a channel that is closed at the next change.
type Supervisor interface {
	Epochs() []epoch.Epoch
	Changed() <-chan struct{}
}

// NewSockets binds the socket of the configuration at the start.
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

// pathOf returns the cleaned path of a configuration's socket, or "".
func (s *Sockets) pathOf(c *config.Config) string {
	if path := s.path(c); path != "" {
		return filepath.Clean(path)
	}
	return ""
}

// start binds the socket of the configuration at the start.
func (s *Sockets) start(path string) error {
	s.failed, s.open = make(chan error, 1), map[string]*socket{}
	s.first, s.inForce = path, use{path: path}
	s.pending, s.uses = map[uint64]use{}, map[use]bool{}
	return s.bind(path)
}

// Name returns the name of the part.
func (s *Sockets) Name() string { return s.key }

// Run serves the sockets until ctx ends and closes those no longer used. The error is that of a
// failed socket.
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
	s.MarkReady()
	defer func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		for path := range s.open {
			s.shut(path)
		}
	}()
	for {
		changed := s.supervisor.Changed() // before sweep, so that no change is missed
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

// Hold binds the socket of a configuration for a reload that may start an epoch with the spec hash,
// until Release. Errors have the position of the key.
func (s *Sockets) Hold(reload uint64, hash string, loaded *config.Loaded) error {
	use := use{hash, s.pathOf(loaded.Config)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(use.path); err != nil {
		return config.Errors{loaded.Fault(s.key, err.Error(), cureOfSocket(err, use.path))}
	}
	s.pending[reload], s.uses[use] = use, true
	return nil
}

// cureOfSocket returns the advice for an error of binding a socket.
func cureOfSocket(err error, path string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "make the folder " + filepath.Dir(path) + ", which the agent writes and Envoy reads"
	case errors.Is(err, fs.ErrPermission):
		return "let the agent's user write the folder " + filepath.Dir(path)
	}
	return "or take another path"
}

// Configure records the configuration in force and the spec hash of its epochs.
func (s *Sockets) Configure(hash string, c *config.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce = use{hash, s.pathOf(c)}
	s.uses[s.inForce] = true
}

// Release ends Hold.
func (s *Sockets) Release(reload uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, reload)
	s.sweep()
}

// bind binds a path unless it is bound, and serves it if Run is active. Callers hold mu, also for
// all methods below.
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

// sameAs returns the open socket that path leads to under another spelling (/var/run for /run), or
// nil.
func (s *Sockets) sameAs(path string) *socket {
	// Lstat: the next start could not listen behind a symbolic link in place of the socket.
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

// begin serves a bound socket.
func (s *Sockets) begin(socket *socket) {
	ctx, cancel := context.WithCancel(s.running)
	socket.cancel = cancel
	go func() {
		defer close(socket.ended)
		if err := s.server.Serve(ctx, socket.bound); err != nil {
			select {
			case s.failed <- err:
			default: // one error ends the agent
			}
		}
	}()
}

// shut closes a socket and waits for its end. If the socket is open under another spelling of its
// path, shut leaves it open and returns false.
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

// sweep closes unused sockets. While no epoch is live it closes none: the supervisor may restart an
// earlier spec.
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
	for _, use := range s.pending {
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
