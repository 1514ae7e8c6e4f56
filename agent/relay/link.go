package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"outrider.org/outrider/agent/backoff"
	xdsresource "outrider.org/outrider/agent/resource"
)

// link is one stream to the upstream server, on a connection of its own. Each link reads the
// credentials again, so renewed credentials need no further handling.
type link struct {
	upstream Upstream
	targets  *targets
	anew     bool // start with any address rather than a preferred one; see targets.next
	server   Options
	cancel   context.CancelFunc
	// the upstream server has responded; only the session's goroutine uses this field
	responded bool
	requests  chan []byte  // queue of requests, bounded; see session.send
	queued    atomic.Int64 // bytes of the queued requests
	events    chan<- event
	modules   *modules
}

// event is a report of a link, a stream to the upstream server, to the session that uses the link.
type event struct {
	link     *link
	message  []byte // a response; nil if err is set or the link has just connected
	response *response
	refused  error // why the response cannot be passed to Envoy
	// extensions of a refused response whose modules are missing; see modules.inline
	failed  map[string][]byte
	closing bool  // the server has announced that it closes the connection
	err     error // why the link has ended
}

// open starts a link. Its first event reports that it is connected, its last one has the error that
// ended it. After ctx has ended, the link sends no event.
func (s *session) open(ctx context.Context) *link {
	ctx, cancel := context.WithCancel(ctx)
	l := &link{upstream: s.upstream, targets: s.targets, anew: s.anew, server: s.server.options,
		cancel:   cancel,
		requests: make(chan []byte, maxRequests), events: s.events, modules: s.server.modules}
	s.anew = false
	go func() {
		defer cancel()
		l.report(ctx, event{link: l, err: l.run(ctx, s.delta)})
	}()
	return l
}

func (l *link) report(ctx context.Context, e event) {
	select {
	case l.events <- e:
	case <-ctx.Done():
	}
}

// run connects to the upstream server, and receives responses until the stream ends.
func (l *link) run(ctx context.Context, delta bool) error {
	to, err := l.targets.next(ctx, l.anew)
	if err != nil {
		return err
	}
	options, err := l.upstream.dialOptions(to.address, l.server)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("dns:///"+to.dial, options...)
	if err != nil {
		return fmt.Errorf("cannot connect to %s: %w", to.address, err)
	}
	defer func() { _ = connection.Close() }()
	method := "/" + serviceName + "/" + worldMethod
	if delta {
		method = "/" + serviceName + "/" + deltaMethod
	}
	ctx = l.upstream.outgoing(ctx)
	stream, err := connection.NewStream(ctx,
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method,
		grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxResponseBytes))
	if err != nil {
		return fmt.Errorf("cannot connect to %s: %w", to.address, err)
	}
	l.report(ctx, event{link: l})
	go l.awaitClosing(ctx, connection)
	go func() {
		for {
			select {
			case message := <-l.requests:
				err := stream.SendMsg(&message)
				l.queued.Add(-int64(len(message)))
				if err != nil {
					return // if SendMsg fails, RecvMsg returns the error
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	extensions := make(chan event, 1)
	go l.extensions(ctx, extensions, delta)
	for {
		var message []byte
		switch err := stream.RecvMsg(&message); {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%s ended the stream", to.address)
		case err != nil:
			return fmt.Errorf("stream of %s: %w", to.address, err)
		}
		r, err := parseResponse(message, delta, false)
		if err != nil {
			return err
		}
		e := event{link: l, message: message, response: r}
		if r.typeURL != xdsresource.ExtensionType {
			l.report(ctx, e)
			continue
		}
		select {
		case extensions <- e:
		case <-ctx.Done():
		}
	}
}

// closingPause delays the event that the server announced the end of the connection (GOAWAY). gRPC
// reports the announcement and the loss of a connection in the same way: only after a loss does the
// stream end within closingPause, and then the end of the stream is reported instead.
const closingPause = 50 * time.Millisecond

// awaitClosing sends an event when the server has announced that it closes the connection.
func (l *link) awaitClosing(ctx context.Context, connection *grpc.ClientConn) {
	if connection.WaitForStateChange(ctx, connectivity.Ready) &&
		backoff.Sleep(ctx, closingPause) == nil {
		l.report(ctx, event{link: l, closing: true})
	}
}

// extensions fetches the Wasm modules of extension configurations in received responses, and then
// passes these responses on, in order. Meanwhile responses of other types are passed on, until two
// more responses with extension configurations are waiting.
func (l *link) extensions(ctx context.Context, received <-chan event, delta bool) {
	for {
		select {
		case e := <-received:
			changed, failed, err := l.modules.inline(ctx, e.response)
			e.failed, e.refused = failed, err
			if changed && err == nil {
				e.message = e.response.encode(delta)
			}
			l.report(ctx, e)
		case <-ctx.Done():
			return
		}
	}
}

// send queues a request to the upstream server. If the queue is full because the server does not
// read, send drops the link. The next link subscribes to what Envoy wants at that time.
func (s *session) send(message []byte) {
	if !s.opened {
		return
	}
	if s.link.queued.Add(int64(len(message))) <= maxQueuedBytes {
		select {
		case s.link.requests <- message:
			return
		default:
		}
	}
	s.drop(fmt.Errorf("the upstream server %s does not read the stream",
		s.targets.current().address))
}

func (s *session) forward(r *request) error {
	message, err := r.encode(s.delta)
	if err != nil {
		return err
	}
	s.send(message)
	return nil
}

// drop ends a failed link and reconnects. It reports the failure once all addresses have failed.
// After a failed link on which the server had responded, the report waits until another attempt
// fails or the time ServeFromCacheAfter is over.
func (s *session) drop(why error) {
	s.targets.failed(why)
	s.server.leaves(s, s.targets.current().address, why)
	if s.opened {
		s.server.lost.Add(1)
	}
	inUse := s.link != nil && s.link.responded
	s.reconnect()
	if !inUse && s.targets.exhausted() {
		s.server.report(s, state{err: s.targets.problem(), cached: s.savedAt()})
	}
}

// move reconnects because the server has announced that it closes the connection, for example to
// balance its clients or to stop. If the server never responded on the link, move handles that as a
// failure.
func (s *session) move() {
	to := s.targets.current().address
	why := fmt.Errorf("the upstream server %s closes the connection", to)
	if !s.link.responded {
		s.drop(why)
		return
	}
	s.server.leaves(s, to, why)
	s.reconnect()
	s.anew = true
}

// reconnect ends the current link, if any, and opens another. Envoy continues with its resources.
func (s *session) reconnect() {
	if s.link != nil {
		s.link.cancel()
	}
	if s.opened && !s.offline {
		s.patience.Reset(s.server.options.ServeFromCacheAfter)
	}
	s.link, s.opened = nil, false
	for _, w := range s.order {
		w.reset()
	}
	s.retry.Reset(0)
}
