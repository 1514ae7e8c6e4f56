// Package xds is a gRPC server of the aggregated discovery service (ADS, incremental and state of
// the world) and of the secret discovery service (SDS).
//
// Each kind of proxy has a feed of encoded resources, which are sent without copying. The memory of
// a client is proportional to the number of its names, and the cost of a change to the size of the
// change. If a client refuses resources, the server determines which ones, reports them, and
// continues to send the others.
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
	// Feed returns the feed for a proxy; proxies of one kind share a feed. The server waits for the
	// feed's first snapshot. An error ends the proxy's stream; if it is a gRPC status, it is sent
	// to the client.
	Feed(node *corev3.Node) (*resource.Feed, error)
}

// SecretSubscriptionObserver is notified of the names of secrets to which clients subscribe, once
// for each name and stream. Its methods must not block.
type SecretSubscriptionObserver interface {
	Subscribe(names []string)
	Unsubscribe(names []string)
}

// Options configures a Server. Only Source is required.
type Options struct {
	Source                     Source
	SecretSubscriptionObserver SecretSubscriptionObserver // notified of subscriptions to secrets; nil: no notifications
	Observer                   Observer                   // notified of events of streams; nil: no notifications
	Logger                     *slog.Logger               // log of the server; nil: no log
	ControlPlane               string                     // identifier of the server in responses; "": none

	// Redact removes secrets from a client's error message, which may quote resources; nil:
	// messages remain unchanged.
	Redact func(message string) string

	// Admit returns the node whose resources a client receives, or an error that ends the client's
	// stream; if the error is a gRPC status, it is sent to the client. Admit may set the client's
	// Identity. nil: each client receives the resources for the node that it sends.
	Admit func(client *Peer, node *corev3.Node) (*corev3.Node, error)
	// MayReceiveSecrets reports whether a client may receive secrets. For other clients no secret
	// exists. nil: all clients may receive them.
	MayReceiveSecrets func(client Peer) bool
	// AnswerDebugRequest returns the debug information that a client requests on a stream of its
	// own. An error ends the stream; if it is a gRPC status, it is sent to the client. nil: no
	// debug information is served.
	AnswerDebugRequest func(ctx context.Context, client Peer, typeURL string, names []string) (
		[]*resource.Resource, error)
	// RegisterWorkload registers the workload of a client that opens an ADS stream. It is called
	// after Admit. An error ends the stream; if it is a gRPC status, it is sent to the client. A
	// nil Registration means that this client registers no workload. nil: no client does.
	RegisterWorkload func(ctx context.Context, client Peer, node *corev3.Node) (Registration, error)
	// EpochNumber returns the epoch number of a client's Envoy: resource.DrainingEpoch if the Envoy
	// drains, 0 if the number is unknown. nil: all numbers are unknown.
	EpochNumber func(client Peer) int
	// HasReservedStreams reports whether a client is one of those for which half of MaxStreams is
	// reserved, and for whose new streams ConnectsPerSecond is counted separately; nil: nothing is
	// reserved.
	HasReservedStreams func(client Peer) bool

	MaxStreams int // maximum number of concurrent streams; 0: 10,000
	// MaxStreamsPerIdentity bounds the concurrent streams of one Peer.Identity; 0: MaxStreams.
	MaxStreamsPerIdentity int
	// ConnectsPerSecond bounds the number of new streams; further ones wait for up to a second, or
	// are refused; 0: no bound. One client address may use half of it on a listener of
	// LimitConnections, where streams that Admit refuses count for their address only.
	ConnectsPerSecond int
	// MaxConcurrentResponseBuilds bounds how many responses are built simultaneously; 0: no bound.
	// Sending is not bounded, so that a client that does not read delays no other one.
	MaxConcurrentResponseBuilds int
	// MaxUnansweredBytes bounds the total size of responses that a client has not answered. If it
	// is exceeded when the next response is due, the stream ends; 0: no bound.
	MaxUnansweredBytes int
	// SendTimeout is the time within which a client must read a response; otherwise it is
	// disconnected; 0: 30 s.
	SendTimeout time.Duration
	// AckTimeout bounds the wait for the answer to a response; after that the next response is
	// sent; 0: 30 s.
	AckTimeout time.Duration
	// FirstRequestTimeout bounds the wait for the first request of a stream; 0: 30 s.
	FirstRequestTimeout time.Duration
	MaxMessageBytes     int // maximum size of a request; 0: 16 MiB
	// MaxSubscriptionBytes bounds the total length of the names to which one stream subscribes; 0:
	// 16 MiB.
	MaxSubscriptionBytes int
	// MaxConnectionAge is the age at which connections are closed; it varies randomly by up to a
	// tenth; 0: connections are not closed.
	MaxConnectionAge time.Duration
	// RegisterServices registers other services with the gRPC server; nil: none.
	RegisterServices func(grpc.ServiceRegistrar)

	// move continues a stream with the feed that the source returns for its proxy now, and returns
	// a channel that is closed when this feed has a newer snapshot; nil: the feed of a proxy never
	// changes.
	move func(st *stream, newer <-chan struct{}) (<-chan struct{}, error)
}

// Defaults of Options, and limits that are not configurable.
const (
	defaultMaxStreams      = 10_000
	defaultTimeout         = 30 * time.Second
	defaultMaxMessageBytes = 16 << 20
	maxTypes               = 64
	maxNameBytes           = 4096
	// maximum size of a node without its list of extensions; the node is retained as long as its
	// stream
	maxNodeBytes      = 256 << 10
	keepaliveInterval = 30 * time.Second
	keepaliveTimeout  = 10 * time.Second
	// short, because an xDS stream does not end by itself
	connectionAgeGrace = 5 * time.Second
	// minimum interval of a client's pings; Envoy's bootstrap sets a longer one
	keepaliveMinimum    = 5 * time.Second
	maxStreamsPerClient = 100 // maximum number of streams on one connection
	// maximum size of a stream's metadata, which is retained as long as the stream; a token may
	// have 64 KiB
	maxHeaderBytes = 128 << 10
	// bytes for each connection; small, because most requests are acknowledgements
	readBuffer = 8 << 10
	// Flow control window of requests. If it is fixed, gRPC does not ping the client after each
	// acknowledgement to measure the connection, which would double the work for a small change.
	requestWindow = 256 << 10
)

// Server serves ADS and SDS to any number of clients.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	secretv3.UnimplementedSecretDiscoveryServiceServer

	options  Options
	logger   *slog.Logger
	observer Observer
	rate     connectRate
	other    connectRate // rate of clients for which no streams are reserved
	rates    connectRates
	drain    draining
	counters counters
	sets     *nameSets
	turns    chan struct{} // limits how many streams build responses simultaneously; nil: no limit

	mu      sync.Mutex
	streams map[uint64]*stream
	others  int            // number of open streams of clients for which no streams are reserved
	owned   map[string]int // number of open streams of each identity
	hubs    map[*resource.Feed]*hub
	lastID  uint64
}

// hub has the state that all streams of one feed share.
type hub struct {
	bodies  *bodies
	streams int
}

// NewServer returns a server. The caller then calls Serve, or creates a gRPC server with
// ServerOptions and calls Register with it.
func NewServer(options Options) (*Server, error) {
	if options.Source == nil {
		return nil, errors.New("xds server: Options.Source is nil")
	}
	if options.EpochNumber == nil {
		options.EpochNumber = func(Peer) int { return 0 }
	}
	setDefault(&options.MaxStreams, defaultMaxStreams)
	setDefault(&options.MaxStreamsPerIdentity, options.MaxStreams)
	setDefault(&options.SendTimeout, defaultTimeout)
	setDefault(&options.AckTimeout, defaultTimeout)
	setDefault(&options.FirstRequestTimeout, defaultTimeout)
	setDefault(&options.MaxMessageBytes, defaultMaxMessageBytes)
	setDefault(&options.MaxSubscriptionBytes, defaultMaxMessageBytes)
	s := &Server{
		options: options, logger: options.Logger, observer: options.Observer,
		rate:  connectRate{perSecond: options.ConnectsPerSecond},
		other: connectRate{perSecond: options.ConnectsPerSecond},
		drain: newDraining(),
		rates: connectRates{perSecond: (options.ConnectsPerSecond + 1) / 2,
			rates: map[admission.ClientKey]*connectRate{}},
		counters: counters{convergence: newConvergence()}, sets: newNameSets(),
		streams: map[uint64]*stream{}, hubs: map[*resource.Feed]*hub{}, owned: map[string]int{},
	}
	if options.MaxConcurrentResponseBuilds > 0 {
		s.turns = make(chan struct{}, options.MaxConcurrentResponseBuilds)
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.observer == nil {
		s.observer = noopObserver{}
	}
	return s, nil
}

func setDefault[T int | time.Duration](value *T, standard T) {
	if *value <= 0 {
		*value = standard
	}
}

// receiveBuffers are the sizes of buffers for requests. gRPC's default sizes have a gap between 32
// KB and 1 MB, in which an Envoy's first request falls (40 KB).
var receiveBuffers = []int{256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// ServerOptions returns the options that a gRPC server needs to serve xDS: the codec that sends
// shared buffers, and the limits.
func (s *Server) ServerOptions() []grpc.ServerOption {
	pool := mem.NewTieredBufferPool(receiveBuffers...)
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(pool)),
		grpc.MaxRecvMsgSize(s.options.MaxMessageBytes),
		experimental.BufferPool(pool),
		grpc.MaxConcurrentStreams(maxStreamsPerClient),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ReadBufferSize(readBuffer),
		grpc.InitialWindowSize(requestWindow), grpc.InitialConnWindowSize(requestWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveInterval, Timeout: keepaliveTimeout,
			MaxConnectionAge: s.options.MaxConnectionAge, MaxConnectionAgeGrace: connectionAgeGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinimum,
			PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
}

// Register registers ADS and SDS, and the services of Options.RegisterServices, with a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(registrar, s)
	secretv3.RegisterSecretDiscoveryServiceServer(registrar, s)
	if s.options.RegisterServices != nil {
		s.options.RegisterServices(registrar)
	}
}

// Serve accepts connections on the listener, and closes it at the end. It returns nil when ctx
// ends, or the error of the listener. Serve may run on several listeners simultaneously.
func (s *Server) Serve(ctx context.Context, listener net.Listener,
	more ...grpc.ServerOption) error {
	server := grpc.NewServer(append(s.ServerOptions(), more...)...)
	s.Register(server)
	if err := admission.ServeGRPC(ctx, server, listener); err != nil {
		return fmt.Errorf("serve xDS on %s: %w", listener.Addr(), err)
	}
	return nil
}

// StreamAggregatedResources implements state-of-the-world ADS.
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

// StreamSecrets implements state-of-the-world SDS.
func (s *Server) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	return s.run(stream, streamKind{service: ServiceSDS, only: resource.SecretType})
}

// DeltaSecrets implements incremental SDS.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	return s.run(stream, streamKind{service: ServiceSDS, only: resource.SecretType, delta: true})
}

// join adds a stream to the server and sets the stream's ID.
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

// share returns the cache of encoded bodies for the streams of a feed. The caller must call unshare
// later.
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

func (s *Server) unshare(feed *resource.Feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hubs[feed]; h != nil {
		if h.streams--; h.streams == 0 {
			delete(s.hubs, feed)
		}
	}
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
}
