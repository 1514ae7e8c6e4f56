package xds

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	// registers the protobuf codec, which decodes requests
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// frame is an encoded response. Its buffers are shared with other streams and must not be modified.
type frame struct{ buffers mem.BufferSlice }

// codec passes frames to the transport without copying them. It passes all other messages to gRPC's
// protobuf codec.
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
