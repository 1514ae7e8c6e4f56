package xds

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that requests go through
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/structpb"
)

// frame is an encoded message. Its buffers are shared with other streams and never written to: the codec hands them to the
// transport as they are.
type frame struct{ buffers mem.BufferSlice }

// codec sends frames without encoding or copying them and leaves everything else to gRPC's protobuf codec.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	if f, ok := message.(*frame); ok {
		return f.buffers, nil
	}
	buffers, err := c.CodecV2.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", message, err)
	}
	return buffers, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, message any) error {
	node := nodeField(message)
	if node == 0 {
		return c.CodecV2.Unmarshal(data, message)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	return c.CodecV2.Unmarshal(mem.BufferSlice{mem.SliceBuffer(withoutExtensions(whole.ReadOnlyData(), node))}, message)
}

// Rehearse decodes a request like the one that an Envoy begins with. Protobuf makes its tables of a message when it first meets one,
// which takes 2 ms for all that is in this one: they are better spent before Envoy waits for the answer.
func Rehearse() error {
	metadata := &structpb.Struct{Fields: map[string]*structpb.Value{"key": structpb.NewStringValue("value")}}
	version := &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1}, Metadata: metadata}
	message, err := newCodec().Marshal(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type", ResourceNamesSubscribe: []string{"name"}, Node: &corev3.Node{
		Id: "id", Metadata: metadata, Locality: &corev3.Locality{Zone: "zone"},
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: version},
	}})
	if err != nil {
		return fmt.Errorf("rehearse a request: %w", err)
	}
	defer message.Free()
	if err := newCodec().Unmarshal(message, new(discoveryv3.DeltaDiscoveryRequest)); err != nil {
		return fmt.Errorf("rehearse a request: %w", err)
	}
	return nil
}
