package relay

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
)

// link is one stream to the upstream server, with a connection of its own. Credentials are read for
// each link, so that rotation needs nothing else.
type link struct {
	upstream Upstream
	server   Options
	cancel   context.CancelFunc
	requests chan []byte // bounded; see session.send
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
				if stream.SendMsg(&message) != nil {
					return // RecvMsg has the error
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	none := make(chan struct{})
	close(none)
	var extensions <-chan struct{} = none
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
		if r.typeURL == extensionType {
			extensions = l.extensions(ctx, e, delta, extensions)
			continue
		}
		l.report(ctx, e)
	}
}

// extensions reports a response with extension configurations once their Wasm modules are there and
// the one before was reported (after). Responses of other types do not wait.
func (l *link) extensions(
	ctx context.Context, e event, delta bool, after <-chan struct{},
) chan struct{} {
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		changed, err := l.modules.inline(ctx, e.response)
		if e.refused = err; changed {
			e.message = e.response.encode(delta)
		}
		<-after
		l.report(ctx, e)
	}()
	return reported
}
