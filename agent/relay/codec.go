package relay

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// codec is a gRPC codec that does not decode messages. Messages are of type *[]byte.
type codec struct{}

// Name implements encoding.CodecV2. It returns the content subtype that servers expect.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(message any) (mem.BufferSlice, error) {
	text, ok := message.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot relay a %T", message)
	}
	return mem.BufferSlice{mem.SliceBuffer(*text)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, message any) error {
	text, ok := message.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot relay a %T", message)
	}
	*text = data.Materialize()
	return nil
}

// Methods of the aggregated discovery service.
const (
	serviceName = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	worldMethod = "StreamAggregatedResources"
	deltaMethod = "DeltaAggregatedResources"
)

// service describes the two methods of the aggregated discovery service, as streams of bytes.
func (s *Server) service() *grpc.ServiceDesc {
	method := func(name string, delta bool) grpc.StreamDesc {
		return grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.relay(stream, delta) }}
	}
	return &grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{method(worldMethod, false), method(deltaMethod, true)}}
}
