package xds

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// streamKind describes the gRPC method of a stream.
type streamKind struct {
	service string
	only    string // the only type that is served; "": any type
	delta   bool
}

// stream connects a session to gRPC. Two goroutines work for it: that of the gRPC handler waits for
// changes, deadlines and the end of the stream; the other one receives requests. Each locks mu,
// passes an event to the session, and sends the responses that are due (push). Neither waits for
// the client: a response whose sending may block is sent by another goroutine. Meanwhile changes
// are merged in the session.
type stream struct {
	Stream  // mu guards Node and Peer until the session exists
	server  *Server
	carrier grpc.ServerStream
	other   bool   // no streams are reserved for the client
	owner   string // identity for which the stream is counted; "": none

	source func() (*resource.Feed, error) // returns the feed of the proxy; see FleetSource
	end    func()                         // ends the use of source
	// receives a value if source may return another feed; nil: the feed never changes
	moved   chan struct{}
	feed    *resource.Feed
	unwatch func() // ends the watch of feed
	shared  *bodies

	registration Registration // nil: the client does not register a workload
	denied       <-chan error // result of Registration.Refused

	ended chan error  // receives the error because of which the stream must end
	alarm *time.Timer // wakes the handler's goroutine

	mu        sync.Mutex // guards all fields below
	session   *session   // nil until the first request is admitted
	closed    bool       // the stream has ended, so the session must not be used any more
	sending   bool       // a response is being sent
	unread    int        // bytes sent since the client last answered the newest response
	lastNonce string     // nonce of the last response
	// time by which the response being sent must be read; zero: sending does not block
	stuck   time.Time
	alarmAt time.Time // time for which alarm is set; zero: it is not set
}

// run serves a stream until it ends. The error is a gRPC status.
func (s *Server) run(carrier grpc.ServerStream, kind streamKind) (err error) {
	ctx := carrier.Context()
	st := &stream{
		Stream: Stream{Service: kind.service, Delta: kind.delta, OpenedAt: time.Now()},
		server: s, carrier: carrier,
		ended: make(chan error, 1),
	}
	client := PeerFromContext(ctx)
	st.Peer = client.withoutToken()
	st.other = !s.reserved(client)
	if err := s.WaitForRateLimit(ctx, client, false); err != nil {
		return err
	}
	if err := s.join(st); err != nil {
		return err
	}
	connected := false
	defer func() {
		if cause := recover(); cause != nil { // a panic ends only this stream, not the server
			err = st.panicked(cause)
		}
		s.leave(st)
		if connected {
			reason := err
			// the client has disconnected, or the server stops
			if status.Code(err) == codes.Canceled {
				reason = nil
			}
			s.observer.OnDisconnect(st.Stream, reason)
		}
	}()
	first, err := st.first(ctx)
	if err != nil {
		return err
	}
	if err := s.admit(st, &client, first.node); err != nil {
		return withStatus(err)
	}
	if err := s.WaitForRateLimit(ctx, client, true); err != nil {
		return err
	}
	if s.options.AnswerDebugRequest != nil && isDebug(first.typeURL) {
		return withStatus(st.debug(ctx, first))
	}
	defer st.deregister()
	if err := st.register(ctx); err != nil {
		return withStatus(err)
	}
	defer st.endSubscription()
	if err := st.subscribe(); err != nil {
		return err
	}
	newer := st.begin(kind)
	connected = true
	s.observer.OnConnect(st.Stream)
	defer st.unsubscribe()
	defer st.close()
	if err := st.handle(first); err != nil {
		return err
	}
	go st.receive()
	return st.loop(ctx, newer)
}

// begin creates the session, and returns a channel that is closed when the feed has a newer
// snapshot.
func (st *stream) begin(kind streamKind) <-chan struct{} {
	st.mu.Lock()
	defer st.mu.Unlock()
	snapshot, newer := st.snapshot()
	options := &st.server.options
	st.session = &session{
		delta: kind.delta, only: kind.only, patience: options.AckTimeout, snapshot: snapshot,
		feed: st.feed, client: st.client(), visible: st.visible,
		limits: limits{types: maxTypes, nameBytes: maxNameBytes,
			bytes: options.MaxSubscriptionBytes},
		epoch:  func() int { return options.EpochNumber(st.Peer) },
		shared: st.shared, sets: st.server.sets, report: st, redactor: options.Redact,
		watches: map[string]*watch{},
	}
	st.alarm = time.NewTimer(time.Hour)
	st.alarm.Stop()
	return newer
}

// panicked counts and logs a panic, and returns the error that ends the stream.
func (st *stream) panicked(cause any) error {
	st.server.counters.panics.Add(1)
	st.server.logger.Error("panic ended an xDS stream", "stream", st.ID, "cause", cause, "stack",
		string(debug.Stack()))
	return status.Error(codes.Internal, "a defect of the server ended this stream")
}

// snapshot returns the newest snapshot, without resources that the client may not receive, and a
// channel that is closed when there is a newer one. The caller must hold mu, so that a session
// never receives an older snapshot after a newer one.
func (st *stream) snapshot() (*resource.Snapshot, <-chan struct{}) {
	snapshot, newer := st.feed.Current()
	return st.visible(snapshot), newer
}

// visible returns a snapshot without the resources that the client may not receive.
func (st *stream) visible(snapshot *resource.Snapshot) *resource.Snapshot {
	if secrets := st.server.options.MayReceiveSecrets; secrets != nil && !secrets(st.Peer) {
		return snapshot.WithoutType(resource.SecretType)
	}
	return snapshot
}

// handle processes a request, and notifies Options.SecretSubscriptionObserver of the names of
// secrets in it.
func (st *stream) handle(r *request) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || st.report(r) {
		return nil
	}
	if r.nonce == st.lastNonce {
		st.unread = 0
	}
	err := st.session.handle(r)
	subscribed, unsubscribed := st.session.takeDemand()
	if subscriber := st.server.options.SecretSubscriptionObserver; subscriber != nil {
		if len(subscribed) > 0 {
			subscriber.Subscribe(subscribed)
		}
		if len(unsubscribed) > 0 {
			subscriber.Unsubscribe(unsubscribed)
		}
	}
	return err
}

// unsubscribe ends the subscriptions to secrets at Options.SecretSubscriptionObserver when the
// stream ends.
func (st *stream) unsubscribe() {
	w := st.session.watches[resource.SecretType]
	if subscriber := st.server.options.SecretSubscriptionObserver; subscriber != nil && w != nil {
		subscriber.Unsubscribe(w.names.sorted)
	}
}

// close ends the use of the session, before the stream ends.
func (st *stream) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	st.alarm.Stop()
}

// first waits for the first request of the stream, which contains the client's node.
func (st *stream) first(ctx context.Context) (*request, error) {
	timer := time.NewTimer(st.server.options.FirstRequestTimeout)
	defer timer.Stop()
	select {
	case got := <-st.next():
		switch r := got.request; {
		case r == nil:
			return nil, got.err
		case r.node == nil:
			return nil, status.Error(codes.InvalidArgument,
				"the first request of a stream must carry the node")
		case proto.Size(r.node) > maxNodeBytes:
			return nil, status.Errorf(codes.InvalidArgument,
				"the node has %d bytes, more than %d", proto.Size(r.node), maxNodeBytes)
		default:
			return r, nil
		}
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no request within %v",
			st.server.options.FirstRequestTimeout)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// loop handles changes of the feed, deadlines and the end of the stream.
func (st *stream) loop(ctx context.Context, newer <-chan struct{}) error {
	draining := st.server.drain.started
	var leave <-chan time.Time
	for {
		if err := st.push(); err != nil {
			return err
		}
		select {
		case <-newer:
			newer = st.advance()
		case <-st.moved:
			var err error
			if newer, err = st.server.options.move(st, newer); err != nil {
				return err
			}
		case <-draining:
			draining, leave = nil, time.After(rand.N(st.server.drain.within))
		case <-leave:
			return errDraining
		case err := <-st.denied:
			return withStatus(err)
		case <-st.alarm.C:
			if err := st.alarmed(); err != nil {
				return err
			}
		case err := <-st.ended:
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// advance makes the session continue with the newest snapshot, and returns a channel that is closed
// when there is a newer one.
func (st *stream) advance() <-chan struct{} {
	st.mu.Lock()
	defer st.mu.Unlock()
	snapshot, newer := st.snapshot()
	st.session.advance(snapshot)
	return newer
}

// received is the result of receiving a request. If both fields are nil, the client has closed its
// side of the stream.
type received struct {
	request *request
	err     error
}

// next returns a channel that receives the next request. It is only for a stream without a session.
func (st *stream) next() <-chan received {
	next := make(chan received, 1)
	go func() {
		r, err := st.receiveOne()
		next <- received{r, err}
	}()
	return next
}

// receive passes requests to the session until the client closes its side or the stream ends.
func (st *stream) receive() {
	st.work(func() error {
		for {
			r, err := st.receiveOne()
			if r == nil {
				st.finish(err)
				return nil
			}
			if err := st.handle(r); err != nil {
				return err
			}
			if err := st.push(); err != nil {
				return err
			}
		}
	})
}

// work runs a function for the stream in a goroutine other than the handler's. An error or a panic
// ends the stream.
func (st *stream) work(do func() error) {
	defer func() {
		if cause := recover(); cause != nil {
			st.finish(st.panicked(cause))
		}
	}()
	if err := do(); err != nil {
		st.finish(err)
	}
}

// finish makes the handler end the stream with an error. Only the first call has an effect.
func (st *stream) finish(err error) {
	select {
	case st.ended <- err:
	default:
	}
}

func (st *stream) receiveOne() (*request, error) {
	var err error
	var r *request
	if st.Delta {
		message := new(deltaRequest)
		if err = st.carrier.RecvMsg(message); err == nil {
			r = fromDelta(message)
		}
	} else {
		message := new(discoveryv3.DiscoveryRequest)
		if err = st.carrier.RecvMsg(message); err == nil {
			r = fromState(message)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return r, err
}
