package adsload

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that encodes requests
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Response is a DiscoveryResponse or DeltaDiscoveryResponse whose resources are not decoded.
type Response struct {
	TypeURL   string
	Version   string
	Nonce     string
	Resources int
	Removed   int // number of removed resources (delta only)
	Bytes     int // size of the whole message

	raw   []byte // encoded message; valid until handle returns
	delta bool
}

// Field numbers of both kinds of response.
const (
	versionField   = 1
	resourcesField = 2
	typeURLField   = 4
	nonceField     = 5
	removedField   = 6 // delta only; a DiscoveryResponse has control_plane there
)

// codec is a gRPC codec for requests that are already encoded. It passes responses to the client
// without decoding them; the client frees their buffers.
type codec struct{ encoding.CodecV2 }

// message is an encoded response.
type message struct{ buffer mem.Buffer }

// outgoing is a request, followed by encoded fields.
type outgoing struct {
	request proto.Message
	more    [][]byte
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	m, ok := message.(outgoing)
	if !ok {
		return c.CodecV2.Marshal(message)
	}
	encoded, err := proto.Marshal(m.request) // gRPC's codec would use 1 MB for a request of 40 KB
	if err != nil {
		return nil, err
	}
	buffers := mem.BufferSlice{mem.SliceBuffer(encoded)}
	for _, fields := range m.more {
		buffers = append(buffers, mem.SliceBuffer(fields))
	}
	return buffers, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, into any) error {
	if m, ok := into.(*message); ok {
		m.buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, into)
}

// scan reads the scalar fields of a response and counts its resources.
func scan(raw []byte, delta bool) (Response, error) {
	r := Response{raw: raw, delta: delta, Bytes: len(raw)}
	err := fields(raw, func(number protowire.Number, value []byte) {
		switch number {
		case versionField:
			r.Version = string(value)
		case resourcesField:
			r.Resources++
		case typeURLField:
			r.TypeURL = string(value)
		case nonceField:
			r.Nonce = string(value)
		case removedField:
			if delta {
				r.Removed++
			}
		}
	})
	return r, err
}

// contains reports whether the encoded response contains marker, for example the address of an
// endpoint. It may only be called until handle returns.
func (r Response) contains(marker []byte) bool { return bytes.Contains(r.raw, marker) }

// values calls visit with the encoded message of each resource.
func (r Response) values(visit func(value []byte)) error {
	const resourceField, anyValueField = 2, 2
	return fields(r.raw, func(number protowire.Number, resource []byte) {
		if number != resourcesField {
			return
		}
		wrapped := resource
		if r.delta {
			wrapped = first(resource, resourceField)
		}
		visit(first(wrapped, anyValueField))
	})
}

// fields calls visit for each field of an encoded message. value is nil unless the field is
// length-delimited.
func fields(raw []byte, visit func(number protowire.Number, value []byte)) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return fmt.Errorf("malformed message: %w", protowire.ParseError(n))
		}
		raw = raw[n:]
		var value []byte
		if kind == protowire.BytesType {
			value, n = protowire.ConsumeBytes(raw)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, raw)
		}
		if n < 0 {
			return fmt.Errorf("malformed message: %w", protowire.ParseError(n))
		}
		visit(number, value)
		raw = raw[n:]
	}
	return nil
}

// first returns the value of the first field with a number, or nil.
func first(raw []byte, wanted protowire.Number) (found []byte) {
	_ = fields(raw, func(number protowire.Number, value []byte) {
		if number == wanted && found == nil {
			found = value
		}
	})
	return found
}

// every returns all values at a path of field numbers; fields of the path may be repeated.
func every(raw []byte, path ...protowire.Number) (found [][]byte) {
	if len(path) == 0 {
		return [][]byte{raw}
	}
	_ = fields(raw, func(number protowire.Number, value []byte) {
		if number == path[0] && value != nil {
			found = append(found, every(value, path[1:]...)...)
		}
	})
	return found
}
