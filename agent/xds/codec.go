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

// codec passes frames to the transport without copying them, and decodes incremental requests. It
// passes all other messages to gRPC's protobuf codec.
type codec struct {
	encoding.CodecV2
	pool mem.BufferPool // buffers for requests that arrive in several parts
}

func newCodec(pool mem.BufferPool) codec { return codec{encoding.GetCodecV2("proto"), pool} }

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
func (c codec) Unmarshal(data mem.BufferSlice, into any) error {
	r, ok := into.(*deltaRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, into)
	}
	buffer := data.MaterializeToBuffer(c.pool)
	defer buffer.Free()
	return r.decode(buffer.ReadOnlyData())
}
