package xds

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"

	"outrider.org/outrider/agent/lifecycle"
)

// Sockets owns the Unix sockets of an xDS server: that of the current configuration, that of the
// previous one, whose epoch may still drain, and those of reloads in progress. A successful reload
// closes and removes all other sockets.
type Sockets struct {
	lifecycle.Readiness
	options SocketOptions
	listen  func(path string) (net.Listener, error)
	failed  chan error // receives the error of a socket that failed; buffered

	mu       sync.Mutex
	serve    func(*socket)      // starts serving a socket; nil: Run has not been called yet
	ended    bool               // Run has ended, so no socket may be served any more
	open     map[string]*socket // bound sockets by path
	current  string             // socket path in the current configuration
	previous string             // socket path in the previous configuration
	// socket paths that reloads in progress need, by reload ID
	pending map[uint64]string
}

// socket is a bound Unix socket.
type socket struct {
	bound  net.Listener
	cancel context.CancelFunc // stops serving; nil if the socket is not served yet
	ended  chan struct{}      // closed when the server has stopped serving the socket
}

// SocketOptions configures the Unix sockets of a Sockets.
type SocketOptions struct {
	Name       string   // result of Sockets.Name: name of the component in logs and status
	Path       string   // path of the first socket, which NewSockets binds; "": none
	Group      int      // group that may connect; 0: the group of this process
	ExtraGroup int      // another group that may connect; 0: none
	Users      []uint32 // user IDs that may connect; empty: all users whom the mode permits
	// reports whether a user runs Envoy or the agent, or is root; connections of other users have a
	// limit of their own; nil: there are no other users
	IsEnvoyOrAgentUser func(uid uint32) bool
	Server             Service
	Logger             *slog.Logger
}

// Service is an xDS server. Serve serves on a listener until ctx ends, and then closes the
// listener.
type Service interface {
	Serve(ctx context.Context, bound net.Listener, options ...grpc.ServerOption) error
}

// NewSockets returns a Sockets that has bound the socket at o.Path.
func NewSockets(o SocketOptions) (*Sockets, error) {
	connections := newConnections(o.IsEnvoyOrAgentUser)
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

// clean returns the same path for all paths of one file (/run for /var/run).
func clean(path string) string {
	if path == "" {
		return ""
	}
	if folder, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(folder, filepath.Base(path))
	}
	return filepath.Clean(path)
}

// Name returns the name of this component of the agent.
func (s *Sockets) Name() string { return s.options.Name }

// Run serves the sockets until ctx ends, and then closes them. If serving a socket fails, it
// returns the error.
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

// BindSocket binds the socket that a reload needs, unless it is bound already, and keeps it open
// until ReleaseSockets.
func (s *Sockets) BindSocket(reload uint64, path string) error {
	path = clean(path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(path); err != nil {
		return err
	}
	s.pending[reload] = path
	return nil
}

// SetCurrentPath sets the path in the current configuration, and closes sockets that no
// configuration or reload needs any more. Until the next call of SetCurrentPath, the socket of a
// refused reload remains open, because without a live epoch the supervisor may try the refused
// configuration again.
func (s *Sockets) SetCurrentPath(path string) {
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

// ReleaseSockets ends the effect of BindSocket for a reload. The socket remains open until
// SetCurrentPath is called.
func (s *Sockets) ReleaseSockets(reload uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, reload)
}

// bind binds a path that is not bound yet, and serves it if Run has been called. The caller of
// bind, begin and shut must hold mu.
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
			default: // one error is sufficient to end the agent
			}
		}
	}()
}

// shut closes a socket, and waits until the server has stopped serving it.
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
