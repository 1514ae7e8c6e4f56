// Package relay connects Envoys to an upstream xDS server, such as istiod.
//
//	Envoy -- Unix socket --> session -- link --> upstream
//	                            |
//	                          Cache (memory, file)
//
// Each stream of an Envoy (ADS, state of the world or incremental) has a session of its own with
// one stream to the upstream server, so that overlapping epochs do not affect each other. Messages
// are forwarded without decoding. The session records what Envoy subscribes to and accepts. When
// the upstream stream ends, Envoy's stream continues: the session reconnects, and subscribes to
// what Envoy wants. Requests that answer responses of an earlier upstream stream are not forwarded.
//
// Accepted resources are stored in the Cache. A session without a connection to the upstream server
// answers from the Cache. Its next upstream stream then starts from the resources that Envoy has.
//
// The agent's own traffic uses the same streams: a Subscription receives the responses of its type
// (Options.Subscriptions), Server.ReportHealthToUpstream sends a request such as the workload's
// health.
//
// Queues are bounded: a session holds one response, and two more with extension configurations. It
// does not read from the upstream server while Envoy does not read from it. If the upstream server
// does not read, the link is closed. A share bounds the bytes that the relay records of streams.
package relay

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/xds"
)

// Options configures a relay Server.
type Options struct {
	Upstream   Upstream
	InUse      *AddressInUse // receives the address in use; nil: no other component needs it
	Cache      *Cache        // stores accepted resources; nil: no cache
	Conditions *condition.Registry
	Logger     *slog.Logger
	// UserAgent is the name and version of the program, which is sent to the upstream server; "":
	// the user agent of gRPC.
	UserAgent string
	// Certificate returns the workload's certificate. The relay presents it to the upstream server
	// if Upstream.UseWorkloadCertificate is set.
	Certificate func() (*tls.Certificate, error)
	// Subscriptions are the types that the agent itself requests from the upstream server.
	Subscriptions []Subscription
	// ExtraRoots returns roots that are trusted in addition to Upstream.RootFile; nil: none.
	ExtraRoots  func() []*x509.Certificate
	RedactError func(message string) string // redacts Envoy's error messages; nil: no redaction
	// returns the PID of the Envoy at a socket address; nil: PIDs are unknown
	EnvoyPID func(net.Addr) int32
	// IsEnvoy reports whether a client is an Envoy. Other clients have a memory limit of their own,
	// so that they cannot exhaust the limit of Envoys; nil: all clients are Envoys.
	IsEnvoy func(net.Addr) bool
	// ApplicationNode returns the node of clients that are not Envoys. If it returns nil, these
	// clients send their own node, and receive neither cached resources nor the agent's
	// subscriptions.
	ApplicationNode func() *corev3.Node
	OnListeners     func() // called after an Envoy has accepted listeners; nil: no call
	// ServeFromCacheAfter is the time for which a new stream waits for a connection to the upstream
	// server before it is served from the cache; 0: 500 ms.
	ServeFromCacheAfter time.Duration
}

// Server relays xDS streams of Envoys and applications to an upstream server. Its methods are safe
// for concurrent use.
type Server struct {
	lifecycle.Readiness
	options  Options
	upstream atomic.Pointer[Upstream]
	inUse    *AddressInUse
	seed     maphash.Seed // seed of the random order in which addresses are tried

	modules        *modules
	envoys, others *share

	refusals *xds.RefusalConditions
	// number of upstream streams that ended while their Envoy was connected
	lost atomic.Uint64
	// ports on which the accepted listeners demand mutual TLS; nil: no Envoy has accepted listeners
	strict atomic.Pointer[strictPorts]

	mu       sync.Mutex
	sessions map[*session]state
	lastID   uint64
	latest   *session // session that opened its upstream stream last; nil after its end
	// EndAllButLatestStream was called, so only the session latest may reconnect
	leaving bool
	// errors in announced requests, by type; see ReportHealthToUpstream
	announced map[string]*rpcstatus.Status
	shown     Status
	away      away // current text of conditionAway
	unused    map[string]UnusedAddress
}

// New returns a Server with the given options.
func New(options Options) *Server {
	if options.ServeFromCacheAfter == 0 {
		options.ServeFromCacheAfter = defaultPatience
	}
	s := &Server{options: options, sessions: map[*session]state{},
		refusals: xds.NewRefusalConditions(options.Conditions,
			func(string) string { return conditionRefusals },
			refusedPrefix),
		announced: map[string]*rpcstatus.Status{}, unused: map[string]UnusedAddress{},
		inUse: options.InUse, seed: maphash.MakeSeed(),
		modules: &modules{log: options.Logger, cache: options.Cache, pause: firstModulePause, refetch: firstRefetch,
			known: map[[sha256.Size]byte][]byte{}}}
	if s.inUse == nil {
		s.inUse = &AddressInUse{}
	}
	s.envoys, s.others = newShares()
	s.shown = Status{State: Connecting, Since: time.Now()}
	s.upstream.Store(&options.Upstream)
	return s
}

// Name returns the name of this component of the agent.
func (s *Server) Name() string { return "relay" }

// Run writes the cache to its file until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	s.MarkReady()
	if s.options.Cache == nil {
		<-ctx.Done()
		return nil
	}
	return s.options.Cache.run(ctx)
}

// SetUpstreamOfNewStreams sets the upstream server that future streams use. Open streams are not
// changed.
func (s *Server) SetUpstreamOfNewStreams(upstream Upstream) { s.upstream.Store(&upstream) }

// SetUpstream sets the upstream server of all streams. If it has changed, open streams reconnect to
// the new server; if there is none any more, they disconnect.
func (s *Server) SetUpstream(upstream Upstream) {
	s.SetUpstreamOfNewStreams(upstream)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.unused, func(address string, _ UnusedAddress) bool {
		return !slices.Contains(upstream.Addresses, address)
	})
	for session := range s.sessions {
		select {
		case session.reconfigured <- struct{}{}:
		default: // the session has an unread notification already
		}
	}
}

// SetCacheMaxAge sets the maximum age of resources that were read from the cache file. Older ones
// are not served; 0 means no limit.
func (s *Server) SetCacheMaxAge(age time.Duration) {
	if s.options.Cache != nil {
		s.options.Cache.setMaxAge(age)
	}
}

// Serve accepts xDS streams on the listener. It returns nil when ctx ends, or the error of the
// listener, which it closes.
func (s *Server) Serve(
	ctx context.Context, listener net.Listener, more ...grpc.ServerOption,
) error {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxSendMsgSize(maxResponseBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveInterval,
			Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinimum,
			PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}, more...)...)
	server.RegisterService(s.service(), nil)
	err := admission.ServeGRPC(ctx, server, listener)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("relay xDS on %s: %w", listener.Addr(), err)
	}
	return nil
}
