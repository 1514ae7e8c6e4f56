package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	xdsresource "outrider.org/outrider/agent/resource"
)

// fetch sends a request on a stream of its own and returns the resources of the first response. It
// tries the address in use first, then the others; limit bounds each attempt.
func (s *Server) fetch(
	ctx context.Context, upstream Upstream, limit time.Duration,
	request *discoveryv3.DiscoveryRequest,
) (found []*anypb.Any, failed error) {
	for _, address := range shuffled(upstream.Addresses, s.inUse.ConfiguredAddress(), s.seed) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		found, err := upstream.fetch(ctx, address, s.options, request)
		cancel()
		switch {
		case err == nil:
			return found, nil
		case failed == nil:
			failed = err
		default:
			failed = fmt.Errorf("%w; and %w", failed, err)
		}
	}
	return nil, failed
}

func (u Upstream) fetch(ctx context.Context, address string, options Options,
	request *discoveryv3.DiscoveryRequest,
) ([]*anypb.Any, error) {
	ctx, cancel := context.WithCancel(u.outgoing(ctx))
	defer cancel() // ends the stream
	dial, err := u.dialOptions(address, options)
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient("dns:///"+address, dial...)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", address, err)
	}
	defer func() { _ = connection.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		StreamAggregatedResources(ctx, grpc.MaxCallRecvMsgSize(maxResponseBytes))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", address, err)
	}
	_ = stream.Send(request) // if Send fails, Recv returns the error
	response, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return response.Resources, nil
}

const maxBootstrapBytes = 16 << 20

// ErrNoBootstrap is the error of Server.FetchBootstrap if the upstream server sends no usable
// bootstrap. A later request may succeed.
var ErrNoBootstrap = errors.New("the upstream server sends no usable bootstrap")

// FetchBootstrap fetches a node's bootstrap (protobuf) from an upstream server and passes it to the
// function use. If the fetch fails, or, with start set, if use returns an error, it passes the last
// accepted bootstrap. The caller must call accepted once Envoy uses the bootstrap. Errors wrap
// ErrNoBootstrap.
func (s *Server) FetchBootstrap(ctx context.Context, upstream Upstream, node *corev3.Node,
	atStart bool,
	use func(content []byte) error,
) (accepted func(), err error) {
	cache := s.options.Cache
	store := func(found *anypb.Any) func() {
		return func() {
			body, err := proto.Marshal(found)
			if err == nil && cache != nil {
				cache.put(identityOf(node, upstream.name()), xdsresource.BootstrapType, "",
					map[string]resource{"bootstrap": {name: "bootstrap", body: body}})
			}
		}
	}
	found, err := s.bootstrap(ctx, upstream, node)
	fetched := err == nil
	if fetched {
		if err = use(found.Value); err == nil {
			return store(found), nil
		}
	}
	err = fmt.Errorf("%w: %w", ErrNoBootstrap, err)
	if cache == nil || fetched && !atStart {
		return nil, err
	}
	for _, cached := range cache.newest(upstream.name(), node.Id, xdsresource.BootstrapType) {
		var last anypb.Any
		if proto.Unmarshal(cached.body, &last) == nil && use(last.Value) == nil {
			s.options.Logger.Warn("cannot fetch the bootstrap, using the last accepted one",
				"error", err)
			return store(&last), nil
		}
	}
	return nil, err
}

// bootstrap requests the bootstrap of a node from an upstream server.
func (s *Server) bootstrap(
	ctx context.Context, upstream Upstream, node *corev3.Node,
) (*anypb.Any, error) {
	found, err := s.fetch(ctx, upstream, slowUpstream,
		&discoveryv3.DiscoveryRequest{TypeUrl: xdsresource.BootstrapType, Node: node})
	if err != nil {
		return nil, err
	}
	if len(found) != 1 || found[0].TypeUrl != xdsresource.BootstrapType ||
		len(found[0].Value) > maxBootstrapBytes {
		return nil, fmt.Errorf("the response of %s is not one bootstrap of at most %d MB",
			upstream.name(), maxBootstrapBytes>>20)
	}
	return found[0], nil
}

// debugType is the type of istiod's debug information. The name of such a resource is the path of
// an HTTP request below /debug/, its value the body of the response.
const debugType = "istio.io/debug"

// QueryDebug returns debug information of istiod, such as syncz or config_dump?proxyID=ID. istiod
// requires TLS and a client that it can authenticate.
func (s *Server) QueryDebug(ctx context.Context, name string) ([]byte, error) {
	upstream := *s.upstream.Load()
	if len(upstream.Addresses) == 0 {
		return nil, errors.New("there is no upstream server: [discovery] address is empty")
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": upstream.Namespace,
		"SERVICE_ACCOUNT": upstream.ServiceAccount, "CLUSTER_ID": upstream.ClusterID})
	if err != nil {
		return nil, fmt.Errorf("encode the node of a debug request: %w", err)
	}
	found, err := s.fetch(ctx, upstream, debugTimeout, &discoveryv3.DiscoveryRequest{
		TypeUrl: debugType,
		Node: &corev3.Node{Metadata: metadata, Id: fmt.Sprintf(
			"sidecar~0.0.0.0~outrider.%s~%[1]s.svc.cluster.local", upstream.Namespace)},
		ResourceNames: []string{name}})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the upstream server sent no resource for the debug request %s",
			name)
	}
	return found[0].Value, nil
}
