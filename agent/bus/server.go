package bus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// Conditions that this package raises.
const (
	conditionUnavailable = "bus-unavailable"
	conditionNameOwned   = "bus-name-taken"
)

// The delay between attempts to connect doubles from shortestWait to longestWait. It is reset after
// a session that lasted longer than steadyTime.
const (
	shortestWait = 250 * time.Millisecond
	longestWait  = 30 * time.Second
	steadyTime   = 10 * time.Second
)

// Options configures a Server.
type Options struct {
	// address of the bus, in the format of DBUS_SYSTEM_BUS_ADDRESS; "" = SystemAddress
	Address    string
	Instance   string // "" = none
	Unit       string // systemd unit; "" in the foreground or if unknown
	Backend    Backend
	Conditions *condition.Registry // source of the events that become signals
	Logger     *slog.Logger
}

// Server publishes the agent on the bus. It becomes ready when the agent first owns its name on the
// bus. No other component waits for it, because a host may have no bus.
type Server struct {
	lifecycle.Readiness
	options    Options
	interfaces interfaces
}

// New returns a server. Call Run to connect.
func New(options Options) (*Server, error) {
	all, err := readInterfaces()
	if err != nil {
		return nil, err
	}
	if options.Address == "" {
		options.Address = SystemAddress
	}
	return &Server{options: options, interfaces: all}, nil
}

// Name returns the component's name.
func (s *Server) Name() string { return "bus" }

// Run connects to the bus and reconnects until ctx ends. An unavailable bus is reported as a
// condition, not an error. Run must be called only once.
func (s *Server) Run(ctx context.Context) error {
	defer s.options.Conditions.Clear(conditionNameOwned)
	defer s.options.Conditions.Clear(conditionUnavailable)
	retries := backoff.Backoff{Min: shortestWait, Max: longestWait}
	for {
		began := time.Now()
		err := newSession(s.options, s.interfaces).run(ctx, s.nameChanged)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > steadyTime {
			retries.Reset()
		}
		s.unavailable(err)
		if retries.Wait(ctx) != nil {
			return nil //nolint:nilerr // normal end of a part
		}
	}
}

// nameChanged updates the conditions when the agent gains or loses its name.
func (s *Server) nameChanged(ours bool) {
	name := WellKnownName(s.options.Instance)
	s.options.Conditions.Clear(conditionUnavailable)
	if !ours {
		s.options.Conditions.Raise(conditionNameOwned, condition.Warning,
			fmt.Sprintf(
				"another program owns the name %s on D-Bus; the agent takes it once that program exits",
				name))
		return
	}
	s.options.Conditions.Clear(conditionNameOwned)
	s.options.Logger.Info("connected to D-Bus", "name", name)
	s.MarkReady()
}

// unavailable raises the condition that the bus is unavailable. Its severity is Info, because the
// bus is optional, or Warning if the bus denies access.
func (s *Server) unavailable(err error) {
	severity, fix := condition.Info, ""
	if isNamed(err, "org.freedesktop.DBus.Error.AccessDenied") {
		severity = condition.Warning
		fix = "; is org.outrider.Agent1.conf in /usr/share/dbus-1/system.d, and does the agent run as " +
			"the user outrider or as root?"
	}
	s.options.Conditions.Clear(conditionNameOwned)
	s.options.Conditions.Raise(conditionUnavailable, severity,
		fmt.Sprintf(
			"D-Bus is unavailable: %v%s; retrying, nothing else is affected",
			err, fix))
	s.options.Logger.Debug("cannot connect to D-Bus", "error", err)
}
