package mcp

import (
	"context"
	"fmt"
	"os"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// response is a response of the server for one kind, of either variant of xDS.
type response struct {
	typeURL, version, nonce string
	full                    bool // set contains all objects of the kind
	set                     []*anypb.Any
	removed                 []string // names of removed objects, NAMESPACE/NAME
}

// stream is an ADS stream: delta if it is incremental, else state.
type stream struct {
	delta discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	state discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

// open opens a stream and requests all objects of the types.
func open(ctx context.Context, connection *grpc.ClientConn, delta bool, o Options,
	types []string) (stream, error) {
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(connection)
	var st stream
	var err error
	if delta {
		st.delta, err = client.DeltaAggregatedResources(ctx)
	} else {
		st.state, err = client.StreamAggregatedResources(ctx)
	}
	if err != nil {
		return st, fmt.Errorf("connect to %s: %w", o.Address, err)
	}
	node, err := node(o)
	if err != nil {
		return st, err
	}
	for _, typeURL := range types {
		// If sending fails, receive returns the cause.
		if delta {
			_ = st.delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL})
		} else {
			_ = st.state.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL})
		}
	}
	return st, nil
}

// node returns the node of the client. Its type is router: istiod notifies routers of all changes
// except those of Sidecars, but notifies sidecars only of changes that affect them.
func node(o Options) (*corev3.Node, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read host name: %w", err)
	}
	namespace := namespaceOf(o)
	metadata, err := structpb.NewStruct(map[string]any{"GENERATOR": "api", "NAMESPACE": namespace})
	if err != nil {
		return nil, fmt.Errorf("encode metadata of the node: %w", err)
	}
	return &corev3.Node{Metadata: metadata,
		Id: fmt.Sprintf("router~127.0.0.1~%s.%s~%s.svc.cluster.local", host, namespace,
			namespace)}, nil
}

// receive sends the server's responses to a channel until the stream or the context ends.
func (st stream) receive(ctx context.Context, to chan<- response) error {
	for {
		r, err := st.next()
		if err != nil {
			return err
		}
		select {
		case to <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (st stream) next() (response, error) {
	if st.state != nil {
		r, err := st.state.Recv()
		if err != nil {
			return response{}, err
		}
		return response{typeURL: r.TypeUrl, version: r.VersionInfo, nonce: r.Nonce, full: true,
			set: r.Resources}, nil
	}
	r, err := st.delta.Recv()
	if err != nil {
		return response{}, err
	}
	found := response{typeURL: r.TypeUrl, nonce: r.Nonce, removed: r.RemovedResources}
	for _, resource := range r.Resources {
		found.set = append(found.set, resource.Resource)
	}
	return found, nil
}

// acknowledge sends an ACK. The source never sends a NACK: an invalid object affects no other
// objects, and its last good version remains in force.
func (st stream) acknowledge(r response) error {
	if st.state != nil {
		return st.state.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.typeURL,
			VersionInfo: r.version, ResponseNonce: r.nonce})
	}
	return st.delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL,
		ResponseNonce: r.nonce})
}
