package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	xdsresource "outrider.org/outrider/agent/resource"
)

// link is one stream to the upstream server, with a connection of its own. Credentials are read for
// each link, so that rotation needs nothing else.
type link struct {
	upstream Upstream
	server   Options
	cancel   context.CancelFunc
	requests chan []byte  // bounded; see session.send
	queued   atomic.Int64 // bytes of requests
	events   chan<- event
	modules  *modules
}

// event is what a link reports to its session.
type event struct {
	link     *link
	message  []byte // a response; nil: err, or the stream is open
	response *response
	refused  error // why Envoy cannot receive the response
	err      error // why the link has ended
}

// open starts a link. Its first event is that it is open, its last one an error, unless ctx ends.
func (s *session) open(ctx context.Context) *link {
	ctx, cancel := context.WithCancel(ctx)
	l := &link{upstream: s.upstream, server: s.server.options, cancel: cancel,
		requests: make(chan []byte, maxRequests), events: s.events, modules: s.server.modules}
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

// run connects and receives until the stream ends.
func (l *link) run(ctx context.Context, delta bool) error {
	options, err := l.upstream.dialOptions(l.server)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("dns:///"+l.upstream.Address, options...)
	if err != nil {
		return fmt.Errorf("cannot connect to %s: %w", l.upstream.Address, err)
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
		return fmt.Errorf("cannot connect to %s: %w", l.upstream.Address, err)
	}
	l.report(ctx, event{link: l})
	go func() {
		for {
			select {
			case message := <-l.requests:
				err := stream.SendMsg(&message)
				l.queued.Add(-int64(len(message)))
				if err != nil {
					return // RecvMsg has the error
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
			return fmt.Errorf("%s ended the stream", l.upstream.Address)
		case err != nil:
			return fmt.Errorf("stream of %s: %w", l.upstream.Address, err)
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

// extensions reports responses with extension configurations, each once its Wasm modules are there.
// Responses of other types wait only if two more with extensions have arrived meanwhile.
func (l *link) extensions(ctx context.Context, received <-chan event, delta bool) {
	for {
		select {
		case e := <-received:
			changed, err := l.modules.inline(ctx, e.response)
			if e.refused = err; changed {
				e.message = e.response.encode(delta)
			}
			l.report(ctx, e)
		case <-ctx.Done():
			return
		}
	}
}

// send queues a request for upstream. A link that does not read is dropped: its successor
// subscribes with the state at that time.
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
	s.drop(fmt.Errorf("%s does not read", s.link.upstream.Address), s.retries.Next())
}

func (s *session) forward(r *request) error {
	message, err := r.encode(s.delta)
	if err != nil {
		return err
	}
	s.send(message)
	return nil
}

// drop ends the link, if there is one, and connects again after the pause.
func (s *session) drop(why error, pause time.Duration) {
	if s.link != nil {
		s.link.cancel()
	}
	if s.opened {
		s.server.lost.Add(1)
	}
	if s.opened && !s.offline {
		s.patience.Reset(s.server.options.Patience)
	}
	s.link, s.opened, s.failure = nil, false, why
	for _, w := range s.order {
		w.reset()
	}
	s.retry.Reset(pause)
	s.server.report(s, state{err: why, cached: s.savedAt()})
}
