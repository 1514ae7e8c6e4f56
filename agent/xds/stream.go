package xds

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// streamKind is the service and the method of a stream.
type streamKind struct {
	service string
	only    string // the only type that is served; "": any type
	delta   bool
}

// stream connects a session to gRPC. The handler's goroutine owns the session and never waits for
// the client: one goroutine receives requests, another one sends each response. While a response is
// being sent, changes merge in the session.
type stream struct {
	Stream
	server  *Server
	carrier grpc.ServerStream
	session *session
	other   bool   // nothing is reserved for the client
	owner   string // identity for which the stream counts; "": none

	source  func() (*resource.Feed, error) // see MovingSource
	end     func()                         // ends source
	moved   chan struct{}                  // receives if source may have moved; nil: never
	feed    *resource.Feed
	unwatch func() // ends watching feed
	shared  *bodies

	registration Registration // nil: the client does not register a workload
	denied       <-chan error // see Registration.Refused

	requests chan *request
	ended    chan error         // error with which receiving ended
	sent     chan error         // result of sending a response
	inspect  chan func(*stream) // functions that the owner of the session runs
	done     chan struct{}      // closed when the handler returns
}

// run serves a stream until it ends. The error is a gRPC status.
func (s *Server) run(carrier grpc.ServerStream, kind streamKind) (err error) {
	ctx := carrier.Context()
	st := &stream{
		Stream: Stream{Service: kind.service, Delta: kind.delta, Since: time.Now()},
		server: s, carrier: carrier,
		requests: make(chan *request), ended: make(chan error, 1), sent: make(chan error, 1),
		inspect: make(chan func(*stream)), done: make(chan struct{}),
	}
	client := PeerFrom(ctx)
	st.Peer = client.withoutToken()
	st.other = !s.reserved(client)
	if err := s.Wait(ctx, client, false); err != nil {
		return err
	}
	if err := s.join(st); err != nil {
		return err
	}
	connected := false
	defer func() {
		if cause := recover(); cause != nil { // a panic ends one stream, not the server
			s.counters.panics.Add(1)
			s.logger.Error("panic ended an xDS stream", "stream", st.ID, "cause", cause, "stack",
				string(debug.Stack()))
			err = status.Error(codes.Internal, "a defect of the server ended this stream")
		}
		close(st.done)
		s.leave(st)
		if connected {
			reason := err
			// the client has disconnected, or the server stops
			if status.Code(err) == codes.Canceled {
				reason = nil
			}
			s.observer.Disconnected(st.Stream, reason)
		}
	}()
	go st.receive(ctx, carrier)

	first, err := st.first(ctx)
	if err != nil {
		return err
	}
	if err := s.admit(st, &client, first.node); err != nil {
		return withStatus(err)
	}
	st.during(func() { err = s.Wait(ctx, client, true) })
	if err != nil {
		return err
	}
	if s.options.Debug != nil && isDebug(first.typeURL) {
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
	snapshot, newer := st.snapshot()
	st.session = &session{
		delta: kind.delta, only: kind.only, patience: s.options.AnswerTimeout, snapshot: snapshot,
		feed: st.feed, client: st.client(), visible: st.visible,
		limits: limits{types: maxTypes, nameBytes: maxNameBytes,
			bytes: s.options.MaxSubscriptionBytes},
		epoch:  func() int { return s.options.Epoch(st.Peer) },
		shared: st.shared, sets: s.sets, report: st, redactor: s.options.Redact,
		watches: map[string]*watch{},
	}
	connected = true
	s.observer.Connected(st.Stream)
	defer st.unsubscribe()
	if err := st.handle(first); err != nil {
		return err
	}
	return st.loop(ctx, newer)
}

// snapshot returns the newest snapshot that the client may get, and a channel that is closed when
// there is a newer one.
func (st *stream) snapshot() (*resource.Snapshot, <-chan struct{}) {
	snapshot, newer := st.feed.Current()
	return st.visible(snapshot), newer
}

// visible returns a snapshot without the resources that the client may not get.
func (st *stream) visible(snapshot *resource.Snapshot) *resource.Snapshot {
	if secrets := st.server.options.Secrets; secrets != nil && !secrets(st.Peer) {
		return snapshot.Without(resource.SecretType)
	}
	return snapshot
}

// handle processes a request, and notifies the subscriber of names of secrets.
func (st *stream) handle(r *request) error {
	if st.report(r) {
		return nil
	}
	err := st.session.handle(r)
	subscribed, unsubscribed := st.session.takeDemand()
	if subscriber := st.server.options.Subscriber; subscriber != nil {
		if len(subscribed) > 0 {
			subscriber.Subscribe(subscribed)
		}
		if len(unsubscribed) > 0 {
			subscriber.Unsubscribe(unsubscribed)
		}
	}
	return err
}

// unsubscribe ends all subscriptions of the stream to secrets.
func (st *stream) unsubscribe() {
	w := st.session.watches[resource.SecretType]
	if subscriber := st.server.options.Subscriber; subscriber != nil && w != nil {
		subscriber.Unsubscribe(w.names.sorted)
	}
}

// first waits for the first request of the stream, which has the client's node.
func (st *stream) first(ctx context.Context) (*request, error) {
	timer := time.NewTimer(st.server.options.FirstRequestTimeout)
	defer timer.Stop()
	for {
		select {
		case r := <-st.requests:
			if r.node == nil {
				return nil, status.Error(codes.InvalidArgument,
					"the first request of a stream must carry the node")
			}
			if size := proto.Size(r.node); size > maxNodeBytes {
				return nil, status.Errorf(codes.InvalidArgument,
					"the node has %d bytes, more than %d", size, maxNodeBytes)
			}
			return r, nil
		case do := <-st.inspect:
			do(st)
		case err := <-st.ended:
			return nil, err
		case <-timer.C:
			return nil, status.Errorf(codes.DeadlineExceeded, "no request within %v",
				st.server.options.FirstRequestTimeout)
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// loop processes requests and snapshots until the stream ends.
func (st *stream) loop(ctx context.Context, newer <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var stuck time.Time // deadline of the response being sent; zero: none
	draining := st.server.drain.started
	var leave <-chan time.Time
	for {
		now := time.Now()
		st.expire(now)
		if stuck.IsZero() {
			if err := st.checkUnanswered(); err != nil {
				return err
			}
			if r := st.next(now); r != nil {
				st.send(r)
				stuck = now.Add(st.server.options.SendTimeout)
			}
		}
		if wake := earlier(stuck, st.session.wake(now)); !wake.IsZero() {
			timer.Reset(time.Until(wake))
		} else {
			timer.Stop()
		}
		select {
		case r := <-st.requests:
			if err := st.handle(r); err != nil {
				return err
			}
		case err := <-st.sent:
			if err != nil {
				return err
			}
			stuck = time.Time{}
		case <-newer:
			var snapshot *resource.Snapshot
			snapshot, newer = st.snapshot()
			st.session.advance(snapshot)
		case <-st.moved:
			var err error
			if newer, err = st.server.options.move(st, newer); err != nil {
				return err
			}
		case do := <-st.inspect:
			do(st)
		case <-draining:
			draining, leave = nil, time.After(rand.N(st.server.drain.within))
		case <-leave:
			return errDraining
		case err := <-st.denied:
			return withStatus(err)
		case <-timer.C:
			if !stuck.IsZero() && !time.Now().Before(stuck) {
				return st.stuckError()
			}
		case err := <-st.ended:
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// next returns the response to send now, nil if there is none. At most Options.Concurrency streams
// make one at a time.
func (st *stream) next(now time.Time) *response {
	if turns := st.server.turns; turns != nil {
		turns <- struct{}{}
		defer func() { <-turns }()
	}
	r := st.session.next(now)
	if r != nil {
		st.pushed(r)
	}
	return r
}

// expire stops the wait for overdue answers.
func (st *stream) expire(now time.Time) {
	for _, r := range st.session.expire(now) {
		st.server.counters.unanswered.Add(1)
		st.server.logger.Debug("no ACK or NACK from client in time",
			"stream", st.ID, "node", st.Node.GetId(),
			"type", r.typeURL, "nonce", r.nonce, "waited", now.Sub(r.sent))
	}
}

// receive passes requests to loop until the client or the stream ends.
func (st *stream) receive(ctx context.Context, carrier grpc.ServerStream) {
	for {
		r, err := st.receiveOne(carrier)
		if errors.Is(err, io.EOF) {
			err = nil // the client has closed its side of the stream
		}
		if r == nil {
			st.ended <- err
			return
		}
		select {
		case st.requests <- r:
		case <-st.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (st *stream) receiveOne(carrier grpc.ServerStream) (*request, error) {
	if st.Delta {
		message := new(discoveryv3.DeltaDiscoveryRequest)
		if err := carrier.RecvMsg(message); err != nil {
			return nil, err
		}
		return fromDelta(message), nil
	}
	message := new(discoveryv3.DiscoveryRequest)
	if err := carrier.RecvMsg(message); err != nil {
		return nil, err
	}
	return fromState(message), nil
}

// send passes a response to the transport, which blocks until the client has read enough. The
// result is sent to the channel sent.
func (st *stream) send(r *response) {
	frame := r.frame(st.Delta, st.server.options.ControlPlane)
	go func() { st.sent <- st.carrier.SendMsg(frame) }()
}
