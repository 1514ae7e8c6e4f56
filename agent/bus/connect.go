package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// connectTime is how long the bus has to let us in.
const connectTime = 10 * time.Second

// connect makes the connection and says hello.
func (s *session) connect(ctx context.Context) (*wire, error) {
	limited, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	connection, err := dial(limited, s.options.Address)
	if err != nil {
		return nil, err
	}
	wire := newWire(connection, s.take)
	stop := context.AfterFunc(limited, func() { _ = wire.Close() }) // godbus's authentication knows no context
	s.conn, err = dbus.NewConn(wire, dbus.WithSignalHandler(names{Name(s.options.Instance), s.owned}))
	if err != nil {
		_ = wire.Close()
		return nil, fmt.Errorf("use the connection to the bus: %w", err)
	}
	s.authority = newAuthority(s.conn)
	if err := s.conn.Auth(nil); err != nil {
		_ = s.conn.Close()
		return nil, fmt.Errorf("authenticate to the bus: %w", err)
	}
	if err := s.conn.Hello(); err != nil {
		_ = s.conn.Close()
		return nil, fmt.Errorf("say hello to the bus: %w", err)
	}
	if !stop() {
		_ = s.conn.Close()
		return nil, fmt.Errorf("the bus did not let us in within %s", connectTime)
	}
	return wire, nil
}

// takeName asks for the name, last: whoever sees it can use it. If another agent has it, we wait in the bus's queue; nobody is
// thrown out, and nobody may throw us out.
func (s *session) takeName(ctx context.Context) (ours bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, busTime)
	defer cancel()
	name := Name(s.options.Instance)
	var answer uint32
	if err := s.conn.BusObject().CallWithContext(ctx, busName+".RequestName", 0, name, uint32(0)).Store(&answer); err != nil {
		return false, fmt.Errorf("take the name %s: %w", name, err)
	}
	return dbus.RequestNameReply(answer) != dbus.RequestNameReplyInQueue, nil
}

// names follows what becomes of the name. It is godbus's handler of signals; those that reach it are the bus's own.
type names struct {
	name  string
	owned chan<- bool
}

// DeliverSignal takes one signal.
func (n names) DeliverSignal(_, member string, signal *dbus.Signal) {
	if len(signal.Body) == 0 || signal.Body[0] != n.name || member != "NameAcquired" && member != "NameLost" {
		return
	}
	select {
	case n.owned <- member == "NameAcquired":
	default: // the bus says so once or twice in the life of a connection
	}
}
