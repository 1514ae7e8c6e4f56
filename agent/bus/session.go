package bus

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/condition"
)

// The times of a session.
const (
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

	callers     *callers
	queue       chan *call // admitted
	rootQueue   chan *call // the same, of root's
	refused     chan *call
	calls       *limiter[uint32]
	rootCalls   *limiter[string]
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
		callers: newCallers(),
		queue:   make(chan *call, mostCalls), rootQueue: make(chan *call, mostRootCalls), refused: make(chan *call, mostRefusals),
		calls: newLimiter[uint32](mostCalls, mostCallsOfUser), rootCalls: newLimiter[string](mostRootCalls, mostOfSender),
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
	stopEnd := context.AfterFunc(ctx, wire.end)
	ctx, cancel := context.WithCancel(ctx)
	stopLost := context.AfterFunc(s.conn.Context(), cancel)
	woken, unwatch := s.options.Events.Watch(1)
	defer func() {
		unwatch()
		cancel()
		s.running.Wait()
		stopLost()
		stopEnd()
		_ = wire.Close() // first: godbus waits for writes
		_ = s.conn.Close()
	}()

	changed := s.options.Backend.Changed() // before the first look: nothing is missed
	s.teller = &teller{conn: s.conn, interfaces: s.interfaces}
	for _, event := range s.options.Events.Events(0) {
		s.teller.sequence = event.Sequence // what was before is history
	}
	s.look(ctx)
	s.teller.told = s.state.get(ctx)

	for range readers {
		s.running.Go(func() { s.read(ctx) })
	}
	for range rootReaders {
		s.running.Go(func() { s.readRoot(ctx) })
	}
	s.running.Go(func() { s.identify(ctx) })
	s.running.Go(func() { s.refuse(ctx) })
	s.running.Go(func() { s.measure(ctx) })
	ours, err := s.takeName(ctx)
	if err != nil {
		return err
	}
	taken(ours)
	return s.follow(ctx, changed, woken, ours, taken)
}

// follow looks whenever something may have changed, or somebody wants to know, and tells what did.
func (s *session) follow(ctx context.Context, changed <-chan struct{}, woken <-chan condition.Event, ours bool, taken func(bool)) error {
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
			if s.conn.Context().Err() != nil {
				return errLost
			}
			_, err := s.teller.events(s.options.Events) // the last ones: the proxy has ended
			return err
		}
		changed = s.options.Backend.Changed()
		s.look(ctx)
		if err := s.tell(ctx); err != nil {
			return err
		}
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
