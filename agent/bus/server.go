package bus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
)

// The conditions of this part.
const (
	conditionUnavailable = "bus-unavailable"
	conditionTaken       = "bus-name-taken"
)

// The bus is tried again after shortestWait, then ever less often. A session that held for steadyTime begins anew.
const (
	shortestWait = 250 * time.Millisecond
	longestWait  = 30 * time.Second
	steadyTime   = 10 * time.Second
)

// Options of the part.
type Options struct {
	Address    string // of the bus, as in DBUS_SYSTEM_BUS_ADDRESS; "" = SystemAddress
	Instance   string // "" = none
	Backend    Backend
	Events     Events
	Conditions Conditions
	Logger     *slog.Logger
}

// Server is the agent on the bus.
type Server struct {
	options    Options
	interfaces interfaces
	ready      chan struct{}
	once       sync.Once // closes ready
}

// New returns the part; Run runs it.
func New(options Options) (*Server, error) {
	all, err := readInterfaces()
	if err != nil {
		return nil, err
	}
	if options.Address == "" {
		options.Address = SystemAddress
	}
	return &Server{options: options, interfaces: all, ready: make(chan struct{})}, nil
}

// Name is the part's name.
func (s *Server) Name() string { return "bus" }

// Ready is closed once the name on the bus is ours for the first time, which may be never: nothing waits for it.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run is on the bus whenever there is one, until ctx ends. That there is none is a condition, and no error. It runs once.
func (s *Server) Run(ctx context.Context) error {
	defer s.options.Conditions.Clear(conditionTaken)
	defer s.options.Conditions.Clear(conditionUnavailable)
	for wait := shortestWait; ; wait = min(2*wait, longestWait) {
		began := time.Now()
		err := newSession(s.options, s.interfaces).run(ctx, s.taken)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > steadyTime {
			wait = shortestWait
		}
		s.unavailable(err)
		pause(ctx, wait)
	}
}

// taken tells whether the name is ours.
func (s *Server) taken(ours bool) {
	name := Name(s.options.Instance)
	s.options.Conditions.Clear(conditionUnavailable)
	if !ours {
		s.options.Conditions.Raise(conditionTaken, condition.Warning,
			fmt.Sprintf("another program is %s on the bus: this agent can be seen there once that one has ended", name))
		return
	}
	s.options.Conditions.Clear(conditionTaken)
	s.options.Logger.Info("on the bus", "name", name)
	s.once.Do(func() { close(s.ready) })
}

// unavailable tells why the bus is not there. A machine without one is as good as any other; a bus that does not take us is
// worth a warning.
func (s *Server) unavailable(err error) {
	severity, cure := condition.Info, ""
	if isNamed(err, "org.freedesktop.DBus.Error.AccessDenied") {
		severity = condition.Warning
		cure = "; is org.outrider.Agent1.conf in /usr/share/dbus-1/system.d, and does the agent run as the user outrider or as root?"
	}
	s.options.Conditions.Clear(conditionTaken)
	s.options.Conditions.Raise(conditionUnavailable, severity,
		fmt.Sprintf("the agent cannot be seen over D-Bus: %v%s; all else goes on, and it is tried again", err, cure))
	s.options.Logger.Debug("no bus", "error", err)
}
