package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// The times of a session.
const (
	connectTime = 10 * time.Second       // until the bus has let us in
	stateTime   = 5 * time.Second        // of one look at the agent's state, which may ask Envoy
	settleTime  = 10 * time.Millisecond  // changes come together: an epoch exits, another is live, readiness follows
	stateAge    = 50 * time.Millisecond  // a state so old is given to readers; it bounds what they cost
	figuresAge  = time.Second            // the same for what epochs use
	patience    = 200 * time.Millisecond // for which readers wait for a fresh one
	firstLook   = 250 * time.Millisecond // at a proxy that is live and not ready: it does not tell when it is
	longestLook = 10 * time.Second
)

// session is one connection to the bus.
type session struct {
	options    Options
	interfaces interfaces
	handlers   map[string]map[string]handler
	signatures map[string]bool // of the arguments that some method takes

	conn      *dbus.Conn
	authority *authority
	teller    *teller
	owned     chan bool // whether the name is ours, at each change

	state   *shown[*snapshot]
	figures *shown[map[string]Figures]

	queue       chan *call // admitted
	refused     chan *call
	calls       *limiter[string]
	changes     *limiter[uint32]
	rootChanges *limiter[uint32]
	running     sync.WaitGroup // changes

	// order keeps signals back while a change is under way: a caller knows the id of its reload before the reload's end is told.
	order sync.RWMutex
}

func newSession(options Options, all interfaces) *session {
	s := &session{
		options: options, interfaces: all, signatures: all.signatures(),
		owned:   make(chan bool, 8),
		state:   newShown[*snapshot](stateAge, patience),
		figures: newShown[map[string]Figures](figuresAge, patience),
		queue:   make(chan *call, mostCalls), refused: make(chan *call, mostRefusals),
		calls:   newLimiter[string](mostCalls, mostOfSender),
		changes: newLimiter[uint32](mostChanges, mostOfUser), rootChanges: newLimiter[uint32](mostRootChanges, mostRootChanges),
	}
	s.handlers = s.standardHandlers()
	maps.Copy(s.handlers, s.ownHandlers())
	return s
}

// errLost is the end of a session that the bus ended.
var errLost = errors.New("the bus ended the connection")

// run connects, serves and tells until ctx or the connection ends. taken is told whether the name is ours.
func (s *session) run(ctx context.Context, taken func(bool)) error {
	wire, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer s.conn.Close()
	defer wire.Close() // first: godbus waits for writes
	defer context.AfterFunc(ctx, wire.end)()
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(s.conn.Context(), cancel)()

	changed := s.options.Backend.Changed() // before the first look: nothing is missed
	woken, unwatch := s.options.Events.Watch(1)
	defer unwatch()
	s.teller = &teller{conn: s.conn, interfaces: s.interfaces}
	for _, event := range s.options.Events.Events(0) {
		s.teller.sequence = event.Sequence // what was before is history
	}
	s.look(ctx)
	s.teller.told = s.state.get(ctx)

	for range readers {
		s.running.Go(func() { s.read(ctx) })
	}
	s.running.Go(func() { s.refuse(ctx) })
	s.running.Go(func() { s.measure(ctx) })
	defer s.running.Wait()
	defer cancel()
	ours, err := s.takeName(ctx)
	if err != nil {
		return err
	}
	taken(ours)
	delay := firstLook
	for {
		var again <-chan time.Time
		if now := s.teller.told.objects[managerPath].values; now["EnvoyLive"] == true && now["Ready"] == false {
			again = time.After(delay)
			delay = min(2*delay, longestLook)
		} else {
			delay = firstLook
		}
		select {
		case <-changed:
			pause(ctx, settleTime)
		case <-woken:
			pause(ctx, settleTime)
		case <-s.state.asked:
		case <-again:
		case now := <-s.owned:
			if now != ours {
				ours = now
				taken(ours)
			}
			continue
		case <-ctx.Done():
			if s.conn.Context().Err() == nil {
				_, err := s.teller.events(s.options.Events) // the last ones: the proxy has ended
				return err
			}
			return errLost
		}
		changed = s.options.Backend.Changed()
		s.look(ctx)
		if err := s.tell(ctx); err != nil {
			return err
		}
	}
}

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

// look refreshes the state.
func (s *session) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	s.state.set(newSnapshot(s.options.Backend.State(ctx), s.options.Events.Conditions()))
}

// tell sends what has changed.
func (s *session) tell(ctx context.Context) error {
	s.order.Lock()
	defer s.order.Unlock()
	if err := s.teller.objects(s.state.get(ctx)); err != nil {
		return err
	}
	missed, err := s.teller.events(s.options.Events)
	if missed > 0 {
		s.options.Logger.Warn("the bus was too slow for some signals", "missed events", missed)
	}
	return err
}

// measure measures the epochs when somebody wants to know.
func (s *session) measure(ctx context.Context) {
	for {
		select {
		case <-s.figures.asked:
			limited, cancel := context.WithTimeout(ctx, stateTime)
			s.figures.set(s.options.Backend.Measure(limited))
			cancel()
		case <-ctx.Done():
			return
		}
	}
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
