// Package xds is a gRPC server of the aggregated discovery service (ADS, incremental and state of
// the world) and of the secret discovery service (SDS).
//
// Resources come encoded from a feed per kind of proxy and are sent without copying. A client costs
// its list of names, and a change costs what it changes. The server isolates the resources that a
// client refuses, reports them, and sends the others.
package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/resource"
)

// Source provides the resources of proxies.
type Source interface {
	// Feed returns the resources of a proxy; proxies of one kind share a feed. The server waits for
	// its first snapshot. An error ends the proxy's stream; a gRPC status is passed on.
	Feed(node *corev3.Node) (*resource.Feed, error)
}

// Subscriber learns which secrets clients subscribe to: each name once for each stream. Its methods
// must not block.
type Subscriber interface {
	Subscribe(names []string)
	Unsubscribe(names []string)
}

// Options configure a Server. The zero value of everything but Source is usable.
type Options struct {
	Source       Source
	Subscriber   Subscriber   // nil: nobody
	Observer     Observer     // nil: nobody
	Logger       *slog.Logger // nil: discarded
	ControlPlane string       // identifier sent to clients; "": none

	// Redact redacts a client's error message, which may quote resources; nil: no redaction.
	Redact func(message string) string

	// Admit returns the node whose resources a client gets, or an error that ends its stream; a
	// gRPC status is passed on. It may set the client's Identity. nil: each client gets those of the
	// node that it sends.
	Admit func(client *Peer, node *corev3.Node) (*corev3.Node, error)
	// Secrets reports whether a client gets secrets; nil: each does. To others none exists.
	Secrets func(client Peer) bool
	// Debug answers a request for debug information, on a stream of its own. An error ends the stream;
	// a gRPC status is passed on. nil: there is none.
	Debug func(ctx context.Context, client Peer, typeURL string, names []string) (
		[]*resource.Resource, error)
	// Epoch returns the number of a client's epoch among those of its proxy, 0 if it is not known;
	// nil: it never is.
	Epoch func(client Peer) int
	// Reserved reports whether half of MaxStreams, and all of a rate ConnectsPerSecond, is reserved
	// for a client and its like; nil: nothing is reserved.
	Reserved func(client Peer) bool

	MaxStreams int // at the same time; 0: 10,000
	// MaxStreamsPerIdentity bounds those of one Identity; 0: MaxStreams.
	MaxStreamsPerIdentity int
	// ConnectsPerSecond bounds new streams; more wait up to a second, then are refused; 0: no
	// bound. Half of it is for one address of a listener of LimitTCP.
	ConnectsPerSecond int
	// MaxUnansweredBytes bounds the responses to a client that it has not answered: the stream of one
	// that has more ends before the next response; 0: no bound.
	MaxUnansweredBytes int
	// SendTimeout is how long a client may not read before it is disconnected; 0: 30 s.
	SendTimeout time.Duration
	// AnswerTimeout bounds the wait for the answer to a response before the next; 0: 30 s.
	AnswerTimeout time.Duration
	// FirstRequestTimeout bounds the wait for the first request of a stream; 0: 30 s.
	FirstRequestTimeout time.Duration
	MaxMessageBytes     int // of a request; 0: 16 MiB
	// MaxSubscriptionBytes bounds the names that one stream subscribes to; 0: 16 MiB.
	MaxSubscriptionBytes int
	// MaxConnectionAge is when connections are closed, less or more a tenth; 0: never.
	MaxConnectionAge time.Duration
	// Also registers further services; nil: none.
	Also func(grpc.ServiceRegistrar)
}

// Defaults of Options, and fixed bounds.
const (
	defaultMaxStreams      = 10_000
	defaultTimeout         = 30 * time.Second
	defaultMaxMessageBytes = 16 << 20
	maxTypes               = 64
	maxNameBytes           = 4096
	maxNodeBytes           = 256 << 10 // without extensions; a stream retains it
	keepaliveInterval      = 30 * time.Second
	keepaliveTimeout       = 10 * time.Second
	connectionAgeGrace     = 5 * time.Second // streams of xDS never end by themselves
	// between a client's pings; Envoy's bootstrap sets a longer interval
	keepaliveMinimum    = 5 * time.Second
	maxStreamsPerClient = 100 // on one connection
	// of a stream's metadata, which it retains; a token has up to 64 KiB
	maxHeaderBytes = 128 << 10
	readBuffer     = 8 << 10 // bytes per connection: most requests are acknowledgements
)

// Server serves ADS and SDS.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	secretv3.UnimplementedSecretDiscoveryServiceServer

	options  Options
	logger   *slog.Logger
	observer Observer
	rate     connectRate
	other    connectRate // of clients without reservation
	rates    connectRates
	drain    draining
	counters counters
	sets     *nameSets

	mu      sync.Mutex
	streams map[uint64]*stream
	others  int            // of streams: those without reservation
	owned   map[string]int // streams by identity
	hubs    map[*resource.Feed]*hub
	lastID  uint64
}

// hub is the state that streams of one feed share.
type hub struct {
	bodies  *bodies
	streams int
}

// NewServer returns a server. Call Serve, or Register it with a gRPC server that uses
// ServerOptions.
func NewServer(options Options) (*Server, error) {
	if options.Source == nil {
		return nil, errors.New("xds server: no source of resources")
	}
	if options.Epoch == nil {
		options.Epoch = func(Peer) int { return 0 }
	}
	setDefault(&options.MaxStreams, defaultMaxStreams)
	setDefault(&options.MaxStreamsPerIdentity, options.MaxStreams)
	setDefault(&options.SendTimeout, defaultTimeout)
	setDefault(&options.AnswerTimeout, defaultTimeout)
	setDefault(&options.FirstRequestTimeout, defaultTimeout)
	setDefault(&options.MaxMessageBytes, defaultMaxMessageBytes)
	setDefault(&options.MaxSubscriptionBytes, defaultMaxMessageBytes)
	s := &Server{
		options: options, logger: options.Logger, observer: options.Observer,
		rate:  connectRate{perSecond: options.ConnectsPerSecond},
		other: connectRate{perSecond: options.ConnectsPerSecond},
		drain: newDraining(),
		rates: connectRates{perSecond: (options.ConnectsPerSecond + 1) / 2,
			rates: map[admission.Key]*connectRate{}},
		counters: counters{convergence: newConvergence()}, sets: newNameSets(),
		streams: map[uint64]*stream{}, hubs: map[*resource.Feed]*hub{}, owned: map[string]int{},
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.observer == nil {
		s.observer = nobody{}
	}
	return s, nil
}

func setDefault[T int | time.Duration](value *T, standard T) {
	if *value <= 0 {
		*value = standard
	}
}

// receiveBuffers are the buffer sizes for requests. In gRPC's own list 1 MB follows 32 KB, and an
// Envoy's first request has 40 KB.
var receiveBuffers = []int{256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// ServerOptions returns the options of the gRPC server: the codec for shared bytes, and the bounds.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(s.options.MaxMessageBytes),
		experimental.BufferPool(mem.NewTieredBufferPool(receiveBuffers...)),
		grpc.MaxConcurrentStreams(maxStreamsPerClient),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ReadBufferSize(readBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveInterval, Timeout: keepaliveTimeout,
			MaxConnectionAge: s.options.MaxConnectionAge, MaxConnectionAgeGrace: connectionAgeGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinimum,
			PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
}

// Register adds both services, and further ones of Options, to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(registrar, s)
	secretv3.RegisterSecretDiscoveryServiceServer(registrar, s)
	if s.options.Also != nil {
		s.options.Also(registrar)
	}
}

// Serve serves on the listener until the context ends (nil) or the listener fails. It closes the
// listener. Several may run at the same time.
func (s *Server) Serve(ctx context.Context, listener net.Listener,
	more ...grpc.ServerOption) error {
	server := grpc.NewServer(append(s.ServerOptions(), more...)...)
	s.Register(server)
	if err := admission.ServeGRPC(ctx, server, listener); err != nil {
		return fmt.Errorf("serve xDS on %s: %w", listener.Addr(), err)
	}
	return nil
}

// StreamAggregatedResources implements ADS, state of the world.
func (s *Server) StreamAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	return s.run(stream, streamKind{service: ServiceADS})
}

// DeltaAggregatedResources implements incremental ADS.
func (s *Server) DeltaAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	return s.run(stream, streamKind{service: ServiceADS, delta: true})
}

// StreamSecrets implements SDS, state of the world.
func (s *Server) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	return s.run(stream, streamKind{service: ServiceSDS, only: resource.SecretType})
}

// DeltaSecrets implements incremental SDS.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	return s.run(stream, streamKind{service: ServiceSDS, only: resource.SecretType, delta: true})
}

// join registers a stream and sets its ID.
func (s *Server) join(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= s.options.MaxStreams || st.other && s.others >= s.options.MaxStreams/2 {
		s.counters.refusedStreams.Add(1)
		return status.Errorf(codes.ResourceExhausted, "%d streams are open, no more are allowed",
			len(s.streams))
	}
	if s.drain.begun() {
		s.counters.refusedStreams.Add(1)
		return errDraining
	}
	s.lastID++
	st.ID = s.lastID
	s.streams[st.ID] = st
	if st.other {
		s.others++
	}
	s.counters.streams.Add(1)
	return nil
}

// share returns the bodies that streams of a feed share; leave releases them.
func (s *Server) share(feed *resource.Feed) *bodies {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hubs[feed]
	if h == nil {
		h = &hub{bodies: newBodies()}
		s.hubs[feed] = h
	}
	h.streams++
	return h.bodies
}

func (s *Server) leave(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st.ID)
	if len(s.streams) == 0 {
		s.drain.emptied()
	}
	if st.other {
		s.others--
	}
	if s.owned[st.owner]--; s.owned[st.owner] <= 0 {
		delete(s.owned, st.owner)
	}
	if h := s.hubs[st.feed]; h != nil {
		if h.streams--; h.streams == 0 {
			delete(s.hubs, st.feed)
		}
	}
}
