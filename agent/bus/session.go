package bus

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
)

// Timing of a session.
const (
	stateTime = 5 * time.Second // limit of reading the agent's state, which may query Envoy
	// coalesce delays signals to combine related changes, such as the exit of one epoch and the
	// start of another.
	coalesce = 10 * time.Millisecond
	// stateAge is the maximum age of the cached state that clients read. It bounds the cost of
	// reads.
	stateAge   = 50 * time.Millisecond
	figuresAge = time.Second            // maximum age of figures of resource usage
	patience   = 200 * time.Millisecond // limit of a reader's wait for a refreshed state
	// No event reports that a live proxy has become ready. While the proxy is not ready, the
	// agent's state is therefore polled, at intervals from firstLook to longestLook.
	firstLook   = 250 * time.Millisecond
	longestLook = 10 * time.Second
)

// session is one connection to the bus.
type session struct {
	options    Options
	interfaces interfaces
	handlers   map[string]map[string]handler
	signatures map[string]bool // input signatures of all methods

	conn      *dbus.Conn
	authority *authority
	emitter   *emitter
	owned     chan bool // true when the bus name is gained, false when it is lost

	state *shown[*snapshot]
	// reported is the sequence number of the newest event that raised or cleared a condition. Only
	// run's goroutine uses it.
	reported uint64
	figures  *shown[[]Epoch]

	callers     *callers
	queue       chan *call // admitted calls of all users except root
	rootQueue   chan *call // admitted calls of root
	refused     chan *call
	calls       *limiter[uint32]
	rootCalls   *limiter[string]
	changes     *limiter[uint32]
	rootChanges *limiter[uint32]
	running     sync.WaitGroup // changing calls and the session's goroutines

	// order delays signals during a Reload call, so that the caller receives the ID before
	// ReloadFinished.
	order sync.RWMutex
}

func newSession(options Options, all interfaces) *session {
	s := &session{
		options: options, interfaces: all, signatures: all.signatures(),
		owned:   make(chan bool, 8),
		state:   newShown[*snapshot](stateAge, patience),
		figures: newShown[[]Epoch](figuresAge, patience),
		callers: newCallers(),
		queue:   make(chan *call, mostCalls), rootQueue: make(chan *call, mostRootCalls),
		refused:     make(chan *call, mostRefusals),
		calls:       newLimiter[uint32](mostCalls, mostCallsOfUser),
		rootCalls:   newLimiter[string](mostRootCalls, mostOfSender),
		changes:     newLimiter[uint32](mostChanges, mostOfUser),
		rootChanges: newLimiter[uint32](mostRootChanges, mostRootChanges),
	}
	s.handlers = s.standardHandlers()
	maps.Copy(s.handlers, s.ownHandlers())
	return s
}

// errLost reports that the bus closed the connection.
var errLost = errors.New("D-Bus closed the connection")

// run serves one connection until ctx or the connection ends. It calls nameChanged whenever the
// agent gains or loses its name.
func (s *session) run(ctx context.Context, nameChanged func(bool)) error {
	wire, err := s.connect(ctx)
	if err != nil {
		return err
	}
	stopEnd := context.AfterFunc(ctx, wire.end)
	ctx, cancel := context.WithCancel(ctx)
	stopLost := context.AfterFunc(s.conn.Context(), cancel)
	woken, unwatch := s.options.Conditions.Watch(1)
	defer func() {
		unwatch()
		cancel()
		s.running.Wait()
		stopLost()
		stopEnd()
		_ = wire.Close() // before conn.Close, which waits for writes
		_ = s.conn.Close()
	}()

	changed := s.options.Backend.Changed() // before the first read, so that no change is missed
	s.emitter = &emitter{conn: s.conn, interfaces: s.interfaces}
	for _, event := range s.options.Conditions.Events(0) {
		s.emitter.sequence = event.Sequence // skip earlier events
	}
	s.look(ctx)
	s.emitter.sent = s.state.get(ctx)
	s.emitter.conditions = s.emitter.sent.objects[managerPath].values[conditionsProperty]

	for range readers {
		s.running.Go(func() {
			consume(ctx, s.queue, func(c *call) {
				s.serve(ctx, c)
				s.calls.leave(c.uid)
			})
		})
	}
	for range rootReaders {
		s.running.Go(func() {
			consume(ctx, s.rootQueue, func(c *call) {
				s.serve(ctx, c)
				s.rootCalls.leave(c.sender)
			})
		})
	}
	s.running.Go(func() {
		consume(ctx, s.callers.asking, func(sender string) { s.identify(ctx, sender) })
	})
	s.running.Go(func() { consume(ctx, s.refused, s.refuse) })
	s.running.Go(func() {
		consume(ctx, s.figures.refresh, func(struct{}) { s.measure(ctx) })
	})
	ours, err := s.takeName(ctx)
	if err != nil {
		return err
	}
	nameChanged(ours)
	return s.serveChanges(ctx, changed, woken, ours, nameChanged)
}

// serveChanges refreshes the state after changes and on request, and sends the signals for the
// differences.
func (s *session) serveChanges(
	ctx context.Context, changed <-chan struct{}, woken <-chan condition.Event,
	ours bool, nameChanged func(bool),
) error {
	looks := backoff.Backoff{Min: firstLook, Max: longestLook}
	for {
		var again <-chan time.Time
		if now := s.emitter.sent.objects[managerPath].values; now["EnvoyLive"] == true &&
			now["Ready"] == false {
			again = time.After(looks.Next())
		} else {
			looks.Reset()
		}
		select {
		case <-changed:
			_ = backoff.Sleep(ctx, coalesce)
		case <-woken:
			_ = backoff.Sleep(ctx, coalesce)
		case <-s.state.refresh:
		case <-again:
		case now := <-s.owned:
			if now != ours {
				ours = now
				nameChanged(ours)
			}
			continue
		case <-ctx.Done():
			if s.conn.Context().Err() != nil {
				return errLost
			}
			// Send the final events, such as the exit of the proxy.
			_, err := s.emitter.events(s.options.Conditions)
			return err
		}
		changed = s.options.Backend.Changed()
		s.look(ctx)
		if err := s.emit(ctx); err != nil {
			return err
		}
	}
}

// look reads the state of the agent and stores it as a new snapshot.
func (s *session) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	for _, event := range s.options.Conditions.Events(s.reported) {
		switch event.Kind {
		case condition.KindConditionRaised, condition.KindConditionCleared:
			s.reported = event.Sequence
		}
	}
	shown := newSnapshot(s.options.Backend.State(ctx), s.options.Unit)
	shown.reported = s.reported
	s.state.set(shown)
}

// emit sends signals for changed objects and new events.
func (s *session) emit(ctx context.Context) error {
	s.order.Lock()
	defer s.order.Unlock()
	if err := s.emitter.objects(s.state.get(ctx)); err != nil {
		return err
	}
	missed, err := s.emitter.events(s.options.Conditions)
	if missed > 0 {
		s.options.Logger.Warn("dropped D-Bus signals of events: the bus reads too slowly",
			"missed events", missed)
	}
	return err
}

// measure reads the resource usage of epochs.
func (s *session) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	s.figures.set(s.options.Backend.EpochsWithResourceUsage(ctx))
}
