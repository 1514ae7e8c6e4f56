package agent

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

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/xds"
)

// xdsSockets owns the sockets on which Envoys ask for their resources: that of the configuration in force, those of reloads under
// way, and those that living epochs were started with. Any other is closed, and removed.
type xdsSockets struct {
	listen  func(path string) (net.Listener, error)
	serve   func(ctx context.Context, bound net.Listener) error // until ctx ends; it closes the listener
	epochs  func() []epoch.Epoch
	changed func() <-chan struct{} // closed when epochs has changed
	log     *slog.Logger
	failed  chan error // of a socket that is served; holds one

	mu      sync.Mutex
	running context.Context       // of Run; nil: sockets are bound, and served once it runs
	open    map[string]*xdsSocket // by path; one may be there under several spellings of its own
	first   string                // path of the start: also that of epochs of an earlier agent, whose own is not known
	inForce xdsUse
	asked   map[uint64]xdsUse // by reload under way
	uses    map[xdsUse]bool   // of epochs that may live
}

// xdsUse is the path that epochs of a spec ask at.
type xdsUse struct{ hash, path string }

// xdsSocket is one that is bound.
type xdsSocket struct {
	bound  net.Listener
	cancel context.CancelFunc // nil: it is not served yet
	ended  chan struct{}      // closed when it is served no more
}

// newXDSSockets binds the first socket.
func (a *Agent) newXDSSockets(c *config.Config, other *keeper.User) (*xdsSockets, error) {
	log := a.logOf("xds")
	connections := newXDSConnections()
	s := &xdsSockets{
		listen: func(path string) (net.Listener, error) {
			listen := xds.ListenOptions{Path: path, Logger: log}
			if other != nil {
				listen.Group = int(other.GID)
			}
			bound, err := xds.Listen(listen)
			if err != nil {
				return nil, err
			}
			return limitXDS(bound, connections), nil
		},
		serve:  func(ctx context.Context, bound net.Listener) error { return a.xds.Serve(ctx, bound) },
		epochs: a.supervisor.Epochs, changed: a.supervisor.Changed, log: log,
	}
	if err := s.start(filepath.Clean(c.XDS.Socket)); err != nil {
		return nil, err
	}
	return s, nil
}

// start binds the socket of the start.
func (s *xdsSockets) start(path string) error {
	s.failed, s.open = make(chan error, 1), map[string]*xdsSocket{}
	s.first, s.inForce = path, xdsUse{path: path}
	s.asked, s.uses = map[uint64]xdsUse{}, map[xdsUse]bool{}
	return s.bind(path)
}

// Name is the part's name.
func (s *xdsSockets) Name() string { return "xds" }

// Run serves on the sockets until ctx ends, and closes those that are used no more.
func (s *xdsSockets) Run(ctx context.Context) error {
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
		changed := s.changed() // before the look: nothing is missed
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

// want has the socket of a configuration bound, for a reload that may start an epoch of the given spec, until over. Its error says
// where the path was said.
func (s *xdsSockets) want(reload uint64, hash string, loaded *config.Loaded) error {
	use := xdsUse{hash, filepath.Clean(loaded.Config.XDS.Socket)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(use.path); err != nil {
		return config.Errors{loaded.Fault("xds.socket", err.Error(), cureOfSocket(err, use.path))}
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

// commit makes a use that of the configuration in force.
func (s *xdsSockets) commit(hash string, c *config.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce = xdsUse{hash, filepath.Clean(c.XDS.Socket)}
	s.uses[s.inForce] = true
}

// over ends what want began.
func (s *xdsSockets) over(reload uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asked, reload)
	s.sweep()
}

// bind binds a path, unless it is, and serves on it once Run does. Callers hold mu, as of all that follow.
func (s *xdsSockets) bind(path string) error {
	if s.open[path] != nil {
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
	s.open[path] = &xdsSocket{bound: bound, ended: make(chan struct{})}
	if s.running != nil {
		s.begin(s.open[path])
		s.log.Info("serving xDS on another socket", "socket", path)
	}
	return nil
}

// sameAs is the socket that is open at a path under another spelling of it (/var/run for /run); nil: none is.
func (s *xdsSockets) sameAs(path string) *xdsSocket {
	there, err := os.Lstat(path) // not what a link in the socket's place leads to: the next start could not listen there
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
func (s *xdsSockets) begin(socket *xdsSocket) {
	ctx, cancel := context.WithCancel(s.running)
	socket.cancel = cancel
	go func() {
		defer close(socket.ended)
		if err := s.serve(ctx, socket.bound); err != nil {
			select {
			case s.failed <- err:
			default: // one is enough to end the agent
			}
		}
	}()
}

// shut closes a socket, and returns once it is gone; false: it is used under another spelling of its path, and stays.
func (s *xdsSockets) shut(path string) bool {
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

// sweep closes what nobody uses any more. While no epoch is live nothing is: the supervisor may start what was tried before.
func (s *xdsSockets) sweep() {
	living, live := map[string]bool{}, false
	for _, e := range s.epochs() {
		if e.State != epoch.Exited {
			living[e.Hash] = true
			live = live || e.State.Serves()
		}
	}
	if !live {
		return
	}
	needed, pending := map[string]bool{s.inForce.path: true}, map[xdsUse]bool{}
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
