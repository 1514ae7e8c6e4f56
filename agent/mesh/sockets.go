package mesh

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/xds"
)

// Sockets owns the Unix sockets of an xDS server: those of the configuration in force, of the one
// before, whose epoch may still drain, and of reloads in progress. Each reload that succeeds closes
// and removes all others.
type Sockets struct {
	part.Readiness
	options Options
	listen  func(path string) (net.Listener, error)
	failed  chan error // buffered: error of a served socket

	mu      sync.Mutex
	running context.Context    // of Run; nil: sockets are bound but not served yet
	open    map[string]*socket // by path
	inForce string
	before  string            // in force before
	pending map[uint64]string // by ID of the reload in progress
}

// socket is a bound socket.
type socket struct {
	bound  net.Listener
	cancel context.CancelFunc // nil if not served yet
	ended  chan struct{}      // closed when serving has ended
}

// Options configures Sockets.
type Options struct {
	Key    string                      // configuration key of the socket
	Path   func(*config.Config) string // returns the path; "" if none is needed
	Start  *config.Config              // its socket is bound by NewSockets
	Group  int                         // group that may connect; 0: the agent's own
	Also   int                         // a further one; 0: none
	Users  []uint32                    // users that may connect; empty: as the mode allows
	Own    func(uid uint32) bool       // users whose connections are limited apart; nil: all
	Server Service
	Logger *slog.Logger
}

// Service is the xDS server. Serve serves until ctx ends and closes the listener.
type Service interface {
	Serve(ctx context.Context, bound net.Listener, options ...grpc.ServerOption) error
}

// NewSockets binds the socket of the configuration at the start.
func NewSockets(o Options) (*Sockets, error) {
	connections := newConnections(o.Own)
	s := &Sockets{options: o, failed: make(chan error, 1), open: map[string]*socket{},
		pending: map[uint64]string{},
		listen: func(path string) (net.Listener, error) {
			bound, err := xds.Listen(xds.ListenOptions{
				Path: path, Group: o.Group, AlsoGroup: o.Also, Users: o.Users,
				Logger: o.Logger,
			})
			if err != nil {
				return nil, err
			}
			return connections.limit(bound), nil
		},
	}
	s.inForce = s.pathOf(o.Start)
	if err := s.bind(s.inForce); err != nil {
		return nil, err
	}
	return s, nil
}

// pathOf returns the path of a configuration's socket, or "". Spellings of one path (/var/run for
// /run) give the same result.
func (s *Sockets) pathOf(c *config.Config) string {
	path := s.options.Path(c)
	if path == "" {
		return ""
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(folder, filepath.Base(path))
	}
	return filepath.Clean(path)
}

// Name returns the name of the part.
func (s *Sockets) Name() string { return s.options.Key }

// Run serves the sockets until ctx ends and closes them. The error is that of a failed socket.
func (s *Sockets) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.running = ctx
	for _, socket := range s.open {
		s.begin(socket)
	}
	s.mu.Unlock()
	s.MarkReady()
	select {
	case err = <-s.failed:
	case <-ctx.Done():
	}
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.open {
		s.shut(path)
	}
	return err
}

// Hold binds the socket of a configuration for a reload, until Release. Errors have the position of
// the key.
func (s *Sockets) Hold(reload uint64, loaded *config.Loaded) error {
	path := s.pathOf(loaded.Config)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(path); err != nil {
		return config.Errors{loaded.Fault(s.options.Key, err.Error(), socketFix(err, path))}
	}
	s.pending[reload] = path
	return nil
}

// socketFix returns the advice for an error of binding a socket.
func socketFix(err error, path string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "make the folder " + filepath.Dir(path) + ", which the agent writes and Envoy reads"
	case errors.Is(err, fs.ErrPermission):
		return "let the agent's user write the folder " + filepath.Dir(path)
	}
	return "or take another path"
}

// Configure records the configuration in force, and closes the sockets that nobody needs any more.
// That of a refused reload stays until then: without a live epoch the supervisor may start what was
// refused again.
func (s *Sockets) Configure(c *config.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.inForce = s.inForce, s.pathOf(c)
	needed := map[string]bool{s.inForce: true, s.before: true}
	for _, path := range s.pending {
		needed[path] = true
	}
	for path := range s.open {
		if !needed[path] {
			s.shut(path)
			s.options.Logger.Info("closed an unused xDS socket", "socket", path)
		}
	}
}

// Release ends Hold.
func (s *Sockets) Release(reload uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, reload)
}

// bind binds a path unless it is bound, and serves it if Run is active. Callers hold mu, also for
// the methods below.
func (s *Sockets) bind(path string) error {
	if path == "" || s.open[path] != nil {
		return nil
	}
	if s.running != nil && s.running.Err() != nil {
		return context.Cause(s.running)
	}
	bound, err := s.listen(path)
	if err != nil {
		return err
	}
	s.open[path] = &socket{bound: bound, ended: make(chan struct{})}
	if s.running != nil {
		s.begin(s.open[path])
		s.options.Logger.Info("serving xDS on another socket", "socket", path)
	}
	return nil
}

// begin serves a bound socket.
func (s *Sockets) begin(socket *socket) {
	ctx, cancel := context.WithCancel(s.running)
	socket.cancel = cancel
	go func() {
		defer close(socket.ended)
		if err := s.options.Server.Serve(ctx, socket.bound); err != nil {
			select {
			case s.failed <- err:
			default: // one error ends the agent
			}
		}
	}()
}

// shut closes a socket and waits for its end.
func (s *Sockets) shut(path string) {
	socket := s.open[path]
	delete(s.open, path)
	if socket.cancel != nil {
		socket.cancel()
		<-socket.ended
	} else if err := socket.bound.Close(); err != nil {
		s.options.Logger.Warn("cannot close an unused xDS socket", "socket", path, "error", err)
	}
}
