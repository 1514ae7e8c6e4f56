package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	xdsresource "outrider.org/outrider/agent/resource"
)

// session serves one stream of an Envoy or another client. Only the goroutine of run uses its
// fields, except for the channels reconfigured, announce, query and renewed.
type session struct {
	id     uint64
	server *Server
	stream grpc.ServerStream
	delta  bool
	log    *slog.Logger
	node   *corev3.Node // node of the first request; nil before it
	// the node is that of this host's Envoy, or of the agent's bootstrap for applications
	own     bool
	watches map[string]*watch
	order   []*watch // values of watches, in the order of their first requests
	// number of responses sent from the cache; the nonces of such responses contain it
	cached  int
	share   *share
	counted counted // memory of the session that counts against its share

	upstream Upstream
	targets  *targets
	anew     bool  // the next link must try the addresses without preferring one
	link     *link // current link; nil if there is none
	opened   bool  // link is connected to the upstream server
	events   chan event
	retry    *time.Timer // fires at the next connection attempt
	// patience fires when the time for the upstream server's response is over. After that the cache
	// serves the session.
	patience *time.Timer
	offline  bool    // the cache serves the session
	missing  missing // extensions whose modules could not be fetched
	lost     bool    // the disconnection from upstream was logged; reset by the next response

	// receives a value when Server.SetUpstream has changed the upstream server
	reconfigured chan struct{}
	// receives a value when Server.ReportHealthToUpstream has a new announcement
	announce chan struct{}
	query    chan chan<- []TypeStatus
	// receives a value when the session must reconnect because another one has ended; see
	// session.renew
	renewed chan struct{}
}

// Pauses between connection attempts, before jitter. The longest pause is short, because Envoy must
// receive new resources within two seconds once the upstream server is reachable again.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 1200 * time.Millisecond
	jitter     = 0.2
)

// relay serves one stream of an Envoy until it ends.
func (s *Server) relay(stream grpc.ServerStream, delta bool) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel() // ends the session's link and the goroutine that receives from Envoy
	session := &session{server: s, stream: stream, delta: delta, log: s.options.Logger,
		watches: map[string]*watch{}, upstream: *s.upstream.Load(), events: make(chan event),
		retry: time.NewTimer(0), patience: time.NewTimer(s.options.ServeFromCacheAfter),
		reconfigured: make(chan struct{}, 1), announce: make(chan struct{}, 1),
		query: make(chan chan<- []TypeStatus), renewed: make(chan struct{}, 1)}
	session.targets = s.newTargets(session.upstream)
	defer session.retry.Stop()
	defer session.patience.Stop()
	session.missing = newMissing(s.modules.refetch)
	defer session.missing.timer.Stop()
	session.share = s.shareOf(session)
	if !session.share.streams.take(1) {
		return status.Errorf(codes.ResourceExhausted, "%d streams are open",
			session.share.streams.most)
	}
	defer session.release()
	s.join(session)
	defer s.leave(session)
	return session.run(ctx)
}

// run processes all events of the session until Envoy's stream ends.
func (s *session) run(ctx context.Context) error {
	requests, ended := make(chan []byte), make(chan error, 1)
	go func() {
		for {
			var message []byte
			if err := s.stream.RecvMsg(&message); err != nil {
				ended <- err
				return
			}
			select {
			case requests <- message:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var err error
		select {
		case message := <-requests:
			err = s.request(message)
		case e := <-s.events:
			err = s.event(e)
		case <-s.retry.C:
			s.link = s.open(ctx)
		case <-s.patience.C:
			err = s.impatient()
		case <-s.reconfigured:
			s.reconfigure(*s.server.upstream.Load())
		case <-s.announce:
			err = s.sendAnnouncements()
		case reply := <-s.query:
			reply <- s.types()
		case <-s.missing.timer.C:
			s.fetchAgain()
		case <-s.renewed:
			s.renew()
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		if err != nil {
			return err
		}
	}
}

// reconfigure reconnects the session to another upstream server. If there is none any more, Envoy
// retains its resources, and no error is reported.
func (s *session) reconfigure(upstream Upstream) {
	if s.upstream.Equal(upstream) {
		return
	}
	s.upstream, s.targets = upstream, s.server.newTargets(upstream)
	if len(upstream.Addresses) == 0 {
		s.reconnect()
		s.retry.Stop()
		s.patience.Stop()
		s.server.report(s, state{connected: true})
		return
	}
	s.log.Info("upstream server changed in configuration, reconnecting",
		"address", upstream.Addresses)
	s.reconnect()
}

// request handles an encoded request of Envoy.
func (s *session) request(message []byte) (err error) {
	r, err := parseRequest(message, s.delta)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	first := s.node == nil
	if err := s.identify(r); err != nil {
		return err
	}
	if first && !s.opened && s.targets.exhausted() {
		s.patience.Reset(0)
	}
	w := s.watches[r.typeURL]
	if w == nil {
		if err := s.allow(r.typeURL); err != nil {
			return err
		}
		known, _ := s.known(r.typeURL)
		w = newWatch(r, s.delta, known)
		s.watches[r.typeURL] = w
		s.order = append(s.order, w)
		if s.opened && len(s.order) == 1 {
			s.patience.Reset(slowUpstream)
		}
		if r.typeURL == xdsresource.ListenerType {
			defer func() { err = errors.Join(err, s.subscribe()) }()
		}
	} else {
		if err := s.acknowledge(w, r); err != nil {
			return err
		}
	}
	changed := w.subscribe(r)
	s.forgetMissing(w)
	if changed || w.counted.names == 0 {
		if err := s.countNames(w); err != nil {
			return err
		}
	}
	switch {
	case !s.opened:
		if s.offline && !r.refused {
			return s.serve(w)
		}
	case w.current(r):
		s.send(r.message)
	case changed && (s.delta || !w.answered):
		// The upstream server would ignore the names in a request with a nonce of an earlier
		// stream. In the state of the world no request is needed once the server has responded on
		// this stream, because Envoy's next answer contains all names.
		return s.forward(&request{typeURL: r.typeURL, names: r.names, version: w.version,
			unsubscribed: r.unsubscribed})
	}
	return nil
}

// acknowledge records Envoy's answer to a response.
func (s *session) acknowledge(w *watch, r *request) error {
	answered, ok := w.acknowledge(r)
	if !ok {
		return nil
	}
	s.countPending(w)
	if r.refused {
		s.refused(w.typeURL, answered.version, r.refusal)
		return nil
	}
	if err := s.countHeld(w); err != nil {
		return err
	}
	s.updateStrict(w)
	// A cached response need not be stored, and does not end refusals of the upstream server's
	// responses.
	if answered.from == nil {
		return nil
	}
	if cache := s.cache(); cache != nil && w.complete() {
		cache.put(identityOf(s.node, answered.from.upstream.name()), w.typeURL,
			w.version, w.held)
	}
	s.acceptRefused(w)
	return nil
}

// event handles an event of the session's link.
func (s *session) event(e event) error {
	switch {
	case e.link != s.link: // an event of a link that was dropped before
	case e.err != nil:
		if !s.lost {
			s.lost = true
			s.log.Debug("upstream server unreachable, Envoy continues with current resources",
				"error", e.err)
		}
		unreachable := !s.opened
		s.drop(e.err)
		if unreachable && s.node != nil && !s.served() && s.targets.exhausted() {
			// all addresses have failed, and waiting longer would only delay Envoy's start
			s.patience.Reset(0)
		}
	case e.closing:
		s.move()
	case e.message == nil:
		return s.resubscribe()
	default:
		return s.respond(e)
	}
	return nil
}

// resubscribe sends all subscriptions on a new stream to the upstream server.
func (s *session) resubscribe() error {
	s.opened = true
	s.server.connected(s)
	switch {
	case !s.offline:
		s.patience.Reset(slowUpstream)
	case len(s.upstream.Addresses) > 1:
		s.patience.Reset(silentUpstream)
	}
	first := true
	for _, w := range s.order {
		r := w.resubscribe()
		if r == nil {
			continue
		}
		if first {
			r.node, first = s.node, false
		}
		if err := s.forward(r); err != nil {
			return err
		}
	}
	return s.subscribe()
}

// respond passes a response of the upstream server to Envoy, or to the agent's subscription of this
// type. It blocks while Envoy does not read.
func (s *session) respond(e event) error {
	r := e.response
	if e.refused != nil {
		if w := s.watches[r.typeURL]; w != nil {
			if !w.served {
				if err := s.serve(w); err != nil {
					return err
				}
			}
			if err := s.sendRest(w, r, e.failed); err != nil {
				return err
			}
		}
		return s.refuse(r, e.refused)
	}
	if own := s.subscription(r.typeURL); own != nil {
		return s.apply(own, r)
	}
	if err := s.stream.SendMsg(&e.message); err != nil {
		return err
	}
	if w := s.watches[r.typeURL]; w != nil {
		w.sent(r, len(e.message), s.link)
		s.missing.received(r)
		s.countPending(w)
	}
	s.lost, s.offline = false, false
	s.patience.Stop()
	if !s.link.responded {
		s.link.responded = true
		s.targets.succeeded()
		s.server.uses(s, s.targets.current())
	}
	s.server.report(s, state{connected: true})
	return nil
}
