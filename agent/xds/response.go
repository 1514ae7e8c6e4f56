package xds

import (
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"outrider.org/outrider/agent/resource"
)

// Field numbers of envoy.service.discovery.v3.DiscoveryResponse and DeltaDiscoveryResponse. "resources" (2) comes with
// the resources; type_url and nonce have the same numbers in both.
const (
	responseVersionField      = 1
	responseTypeURLField      = 4
	responseNonceField        = 5
	stateControlPlaneField    = 6
	deltaRemovedField         = 6
	deltaControlPlaneField    = 7
	controlPlaneIdentityField = 1
)

// response is what one message tells the client, and what is known of it until the client has answered.
type response struct {
	typeURL   string
	nonce     string
	version   string               // of the snapshot it was made from
	resources []*resource.Resource // what it carries; possibly shared between streams, never written to
	removed   []string             // what it says does not exist (delta)
	body      *body                // resources as buffers
	published time.Time            // of the snapshot
	sent      time.Time
	before    map[string]*resource.Resource // what the client held before, once the answer is late
}

// body is the resources of a response, as the transport wants them.
type body struct {
	resources []*resource.Resource
	buffers   mem.BufferSlice
	size      int // bytes
}

func newBody(resources []*resource.Resource, delta bool) *body {
	b := &body{resources: resources, buffers: make(mem.BufferSlice, len(resources))}
	for i, r := range resources {
		field := r.StateField()
		if delta {
			field = r.DeltaField()
		}
		b.buffers[i] = mem.SliceBuffer(field)
		b.size += len(field)
	}
	return b
}

// frame encodes the response: a header of its own and the shared body.
func (r *response) frame(delta bool, controlPlane string) *frame {
	var header []byte
	text := func(field protowire.Number, value string) {
		header = protowire.AppendTag(header, field, protowire.BytesType)
		header = protowire.AppendString(header, value)
	}
	text(responseVersionField, r.version)
	text(responseTypeURLField, r.typeURL)
	text(responseNonceField, r.nonce)
	controlPlaneField := protowire.Number(stateControlPlaneField)
	if delta {
		controlPlaneField = deltaControlPlaneField
		for _, name := range r.removed {
			text(deltaRemovedField, name)
		}
	}
	if controlPlane != "" {
		header = protowire.AppendTag(header, controlPlaneField, protowire.BytesType)
		header = protowire.AppendVarint(header, uint64(protowire.SizeTag(controlPlaneIdentityField)+protowire.SizeBytes(len(controlPlane))))
		text(controlPlaneIdentityField, controlPlane)
	}
	buffers := make(mem.BufferSlice, 0, 1+len(r.body.buffers))
	buffers = append(buffers, mem.SliceBuffer(header))
	return &frame{append(buffers, r.body.buffers...)}
}
