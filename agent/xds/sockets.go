package xds

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"

	"outrider.org/outrider/agent/part"
)

// Sockets owns the Unix sockets of an xDS server: those of the current configuration, of the
// previous one, whose epoch may still drain, and of reloads in progress. A successful reload closes
// and removes all others.
type Sockets struct {
	part.Readiness
	options SocketOptions
	listen  func(path string) (net.Listener, error)
	failed  chan error // error of a socket that failed; buffered

	mu       sync.Mutex
	serve    func(*socket)      // starts serving a socket; nil: sockets are bound but not served yet
	ended    bool               // whether Run has ended, so that no socket may be served any more
	open     map[string]*socket // open sockets by path
	current  string             // socket path in the current configuration
	previous string             // socket path in the previous configuration
	// path of the socket that a reload in progress holds, by the reload's ID
	pending map[uint64]string
}

// socket is a bound Unix socket.
type socket struct {
	bound  net.Listener
	cancel context.CancelFunc // stops serving; nil if the socket is not served yet
	ended  chan struct{}      // closed when serving has ended
}

// SocketOptions configures the Unix sockets of a Sockets.
type SocketOptions struct {
	Name       string   // result of Sockets.Name: the part's name in logs and status
	Path       string   // path of the first socket, which NewSockets binds; "": none
	Group      int      // group that may connect; 0: the group of this process
	ExtraGroup int      // further group that may connect; 0: none
	Users      []uint32 // user IDs that may connect; empty: all that the mode permits
	// reports whether a user's connections have a limit of their own; nil: those of all users
	IsOwnUser func(uid uint32) bool
	Server    Service
	Logger    *slog.Logger
}

// Service is a server of xDS. Serve serves until ctx ends and closes the listener.
type Service interface {
	Serve(ctx context.Context, bound net.Listener, options ...grpc.ServerOption) error
}

// NewSockets returns a Sockets that has bound its first socket.
func NewSockets(o SocketOptions) (*Sockets, error) {
	connections := newConnections(o.IsOwnUser)
	s := &Sockets{options: o, failed: make(chan error, 1), open: map[string]*socket{},
		pending: map[uint64]string{},
		listen: func(path string) (net.Listener, error) {
			bound, err := Listen(ListenOptions{
				Path: path, Group: o.Group, ExtraGroup: o.ExtraGroup, Users: o.Users,
				Logger: o.Logger,
			})
			if err != nil {
				return nil, err
			}
			return connections.limit(bound), nil
		},
	}
	s.current = clean(o.Path)
	if err := s.bind(s.current); err != nil {
		return nil, err
	}
	return s, nil
}

// clean returns the same path for all spellings of a path (/var/run for /run).
func clean(path string) string {
	if path == "" {
		return ""
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(folder, filepath.Base(path))
	}
	return filepath.Clean(path)
}

// Name returns the name of the part.
func (s *Sockets) Name() string { return s.options.Name }

// Run serves the sockets until ctx ends, and closes them. It returns the error of a socket that
// failed.
func (s *Sockets) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.serve = func(socket *socket) { s.begin(ctx, socket) }
	for _, socket := range s.open {
		s.serve(socket)
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
	s.ended = true
	for path := range s.open {
		s.shut(path)
	}
	return err
}

// HoldSocket binds the socket that a reload needs, and keeps it open until ReleaseReload.
func (s *Sockets) HoldSocket(reload uint64, path string) error {
	path = clean(path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(path); err != nil {
		return err
	}
	s.pending[reload] = path
	return nil
}

// Configure records the path in the current configuration, and closes sockets that no configuration
// or reload needs any more. The socket of a refused reload remains until then, because without a
// live epoch the supervisor may start the refused configuration again.
func (s *Sockets) Configure(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.previous, s.current = s.current, clean(path)
	needed := map[string]bool{s.current: true, s.previous: true}
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

// ReleaseReload releases the sockets that HoldSocket keeps open for a reload.
func (s *Sockets) ReleaseReload(reload uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, reload)
}

// bind binds a path that is not bound yet, and serves it if Run is active. Callers of bind, begin
// and shut hold mu.
func (s *Sockets) bind(path string) error {
	if path == "" || s.open[path] != nil {
		return nil
	}
	if s.ended {
		return net.ErrClosed
	}
	bound, err := s.listen(path)
	if err != nil {
		return err
	}
	s.open[path] = &socket{bound: bound, ended: make(chan struct{})}
	if s.serve != nil {
		s.serve(s.open[path])
		s.options.Logger.Info("serving xDS on new socket", "socket", path)
	}
	return nil
}

// begin serves a bound socket until ctx ends.
func (s *Sockets) begin(ctx context.Context, socket *socket) {
	ctx, cancel := context.WithCancel(ctx)
	socket.cancel = cancel
	go func() {
		defer close(socket.ended)
		if err := s.options.Server.Serve(ctx, socket.bound); err != nil {
			select {
			case s.failed <- err:
			default: // one error suffices to end the agent
			}
		}
	}()
}

// shut closes a socket and waits until serving has ended.
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
