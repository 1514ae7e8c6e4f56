package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// connectTime limits connecting and authenticating.
const connectTime = 10 * time.Second

// connect connects to the bus and authenticates.
func (s *session) connect(ctx context.Context) (*wire, error) {
	limited, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	connection, err := dial(limited, s.options.Address)
	if err != nil {
		return nil, err
	}
	wire := newWire(connection, s.take)
	// godbus's authentication accepts no context, so the connection is closed when limited ends
	stop := context.AfterFunc(limited, func() { _ = wire.Close() })
	s.conn, err = dbus.NewConn(wire,
		dbus.WithSignalHandler(names{WellKnownName(s.options.Instance), s.owned}))
	if err != nil {
		_ = wire.Close()
		return nil, fmt.Errorf("set up the D-Bus connection: %w", err)
	}
	s.authority = newAuthority(s.conn)
	if err := s.conn.Auth(nil); err != nil {
		_ = s.conn.Close()
		return nil, fmt.Errorf("authenticate to D-Bus: %w", err)
	}
	if err := s.conn.Hello(); err != nil {
		_ = s.conn.Close()
		return nil, fmt.Errorf("call the D-Bus method Hello: %w", err)
	}
	if !stop() {
		_ = s.conn.Close()
		return nil, fmt.Errorf("D-Bus did not complete the authentication within %s", connectTime)
	}
	return wire, nil
}

// takeName requests the name on the bus. It is called last, because clients use the agent as soon
// as the name appears. If another agent owns the name, the bus queues the request; neither agent
// replaces the other.
func (s *session) takeName(ctx context.Context) (ours bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, busTime)
	defer cancel()
	name := WellKnownName(s.options.Instance)
	var answer uint32
	if err := s.conn.BusObject().CallWithContext(ctx, busName+".RequestName", 0, name,
		uint32(0)).Store(&answer); err != nil {
		return false, fmt.Errorf("request the D-Bus name %s: %w", name, err)
	}
	return dbus.RequestNameReply(answer) != dbus.RequestNameReplyInQueue, nil
}

// names receives signals from godbus. It reports when the agent gains or loses its name on the bus.
// Only signals of the bus daemon itself reach it.
type names struct {
	name  string
	owned chan<- bool
}

// DeliverSignal handles one signal.
func (n names) DeliverSignal(_, member string, signal *dbus.Signal) {
	if len(signal.Body) == 0 || signal.Body[0] != n.name ||
		member != "NameAcquired" && member != "NameLost" {
		return
	}
	select {
	case n.owned <- member == "NameAcquired":
	default: // never full: the bus sends one or two such signals per connection
	}
}
