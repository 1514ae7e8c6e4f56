package keeper

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"outrider.org/outrider/agent/accept"
	"outrider.org/outrider/agent/repeat"
	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/agent/unixpeer"
)

// Options configure a keeper.
type Options struct {
	Folder string // directory of sockets and the lock; created with mode 0750
	Socket string // path of the keeper's socket, with mode 0600; unused if Listener is set
	// Listener is the keeper's socket if systemd has passed one (socket activation).
	Listener *os.File
	BaseID   uint32 // Envoy's --base-id; 0 = a free one
	// AllowedUID is a user that may connect in addition to root, the keeper's user and the owner of
	// the socket; -1 = none.
	AllowedUID int
	// IdleTimeout is how long the keeper runs without agent and Envoy before it exits; 0 = no
	// limit.
	IdleTimeout time.Duration
	Version     string    // of the program
	Log         io.Writer // for messages; write errors are ignored

	sharedMemory string // folder of the shared memory files, for tests; "" = /dev/shm
}

// server is the state of a keeper.
type server struct {
	options  Options
	info     Info
	memory   sharedMemory
	main     *mainThread
	lines    *backlog
	logged   repeat.Limiter
	listener *net.UnixListener
	lock     *os.File
	users    []uint32 // users that may connect besides root
	path     string
	program  string // executed by reexecute

	measured  measurement
	listened  listenedPorts
	attaching sync.Mutex    // held while BPF programs are attached to listeners
	checks    chan struct{} // holds one element per check of a file in progress

	mu       sync.Mutex
	children []*child // in the order of their start, until forgotten
	// commands are running short commands, by pid. The channel receives the exit; it is nil for a
	// command that was started before a re-execution.
	commands map[int]chan<- Exit
	agent    *connection          // nil: none
	released chan struct{}        // closed when the agent disconnects
	all      map[*connection]bool // every connection
	changed  chan struct{}        // closed and renewed when an Envoy exits
	idle     *time.Timer          // fires after IdleTimeout
	steered  *steering            // nil: none
	stopping bool
	quitOnce sync.Once
	serving  sync.WaitGroup // goroutines of connections
}

// maxConnections bounds the open connections to the keeper's socket, of all users together.
const maxConnections = 16

func newServer(options Options) *server {
	memory := "/dev/shm"
	if options.sharedMemory != "" {
		memory = options.sharedMemory
	}
	s := &server{
		options: options, memory: sharedMemory{memory}, main: newMainThread(), lines: newBacklog(),
		checks: make(chan struct{}, maxChecks), commands: map[int]chan<- Exit{},
		all: map[*connection]bool{}, changed: make(chan struct{}),
	}
	s.measured.take = s.measure
	return s
}

// logf writes a message to the log. Messages that repeat are omitted.
func (s *server) logf(format string, arguments ...any) {
	if s.options.Log != nil {
		s.logged.Fprintf(s.options.Log, "outrider-keeper: "+format, arguments...)
	}
}

// accept serves connections until the listener is closed.
func (s *server) accept() {
	failed := func(err error) { s.logf("accept an agent: %v", err) }
	for {
		socket, err := accept.NextConn(s.listener.AcceptUnix, failed)
		if err != nil {
			return
		}
		s.mu.Lock()
		if len(s.all) >= maxConnections || s.stopping {
			s.mu.Unlock()
			_ = socket.Close()
			continue
		}
		peer, err := unixpeer.OfConn(socket)
		c := newConnection(socket, "", peer.PID)
		s.all[c] = true
		s.serving.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.serving.Done()
			defer s.disconnected(c)
			if err == nil && !slices.Contains(s.users, peer.UID) && peer.UID != 0 {
				err = fmt.Errorf("user %d (pid %d) may not connect to the keeper", peer.UID,
					peer.PID)
			}
			if err != nil {
				s.logf("refused a connection: %v", err)
				_ = c.conn.Send(c.ctx, hello{Protocol: protocolVersion,
					Error: refuse(CodeForbidden, "%v", err)})
				return
			}
			s.serveConnection(c)
		}()
	}
}

// serveConnection exchanges hellos with a client and handles its requests until the connection ends
// or a request is malformed.
func (s *server) serveConnection(c *connection) {
	var theirs hello
	if err := c.conn.Receive(time.Now().Add(rpc.PeerTimeout), &theirs); err != nil {
		return
	}
	c.role = theirs.Role
	if refusal := s.admit(c, theirs); refusal != nil {
		_ = c.conn.Send(c.ctx, hello{Protocol: protocolVersion, Error: refusal})
		return
	}
	if err := c.conn.Send(c.ctx, hello{Protocol: protocolVersion, Info: &s.info}); err != nil {
		return
	}
	var writer sync.WaitGroup
	writer.Go(func() { c.write(s.lines) })
	for {
		var r request
		if err := c.conn.Receive(time.Time{}, &r); err != nil || r.Number == 0 {
			break
		}
		s.handle(c, r)
	}
	c.cancel()
	_ = c.conn.Close()
	writer.Wait()
	s.releaseAgent(c) // now, so that the next agent need not wait for running calls
	c.running.Wait()
}

// busyWait is how long a new agent waits for the previous one to disconnect.
const busyWait = 300 * time.Millisecond

// admit checks whether a client may have the role that it requests.
func (s *server) admit(c *connection, theirs hello) *Error {
	if theirs.Role == roleUpgrade {
		return nil
	}
	if theirs.Protocol != protocolVersion {
		refusal := refuse(CodeVersion, "this keeper speaks protocol version %d, not %d",
			protocolVersion, theirs.Protocol)
		refusal.Protocol = protocolVersion
		return refusal
	}
	if theirs.Role != roleAgent {
		return refuse(CodeInvalid, "there is no role %q", theirs.Role)
	}
	deadline := time.NewTimer(busyWait)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		holder, released := s.agent, s.released
		if holder == nil {
			s.agent, s.released = c, make(chan struct{})
			s.updateIdleTimer()
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-released:
		case <-deadline.C:
			refusal := refuse(CodeBusy, "another agent (pid %d) is connected", holder.pid)
			refusal.PID = holder.pid
			return refusal
		}
	}
}

// disconnected removes a connection.
func (s *server) disconnected(c *connection) {
	c.cancel()
	_ = c.conn.Close()
	s.releaseAgent(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// releaseAgent admits the next agent if this connection was the agent's.
func (s *server) releaseAgent(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agent == c {
		s.agent = nil
		close(s.released)
		// The writer of the lost connection may have consumed the notification of new lines: notify
		// the next writer.
		s.lines.wake()
		s.updateIdleTimer()
	}
}

// updateIdleTimer starts or stops the timer of IdleTimeout.
func (s *server) updateIdleTimer() {
	if s.options.IdleTimeout <= 0 {
		return
	}
	isIdle := s.agent == nil && len(s.find((*child).lives)) == 0
	switch {
	case !isIdle && s.idle != nil:
		s.idle.Stop()
		s.idle = nil
	case isIdle && s.idle == nil:
		var timer *time.Timer
		timer = time.AfterFunc(s.options.IdleTimeout, func() {
			s.mu.Lock()
			stillIdle := s.idle == timer
			s.stopping = s.stopping || stillIdle
			s.mu.Unlock()
			if stillIdle {
				s.shutdown()
			}
		})
		s.idle = timer
	}
}
