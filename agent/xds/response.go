package xds

import (
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"outrider.org/outrider/agent/resource"
)

// Field numbers of DiscoveryResponse, DeltaDiscoveryResponse and ControlPlane (xDS v3). Fields
// whose constants begin with "response" have the same number in both kinds of responses. Encoded
// resources contain their own tag.
const (
	responseVersionField      = 1
	responseTypeURLField      = 4
	responseNonceField        = 5
	stateControlPlaneField    = 6
	deltaRemovedField         = 6
	deltaControlPlaneField    = 7
	controlPlaneIdentityField = 1
)

// response is a DiscoveryResponse or DeltaDiscoveryResponse. It is retained until the client
// answers it.
type response struct {
	typeURL string
	nonce   string
	version string // version of the snapshot from which the response was built
	// sequence number of the snapshot from which the response was built
	sequence uint64
	// resources in the response; possibly shared between streams, so it must not be modified
	resources []*resource.Resource
	removed   []string  // names that, according to the response, do not exist (incremental)
	body      *body     // resources in encoded form
	published time.Time // time of the snapshot's publication
	sent      time.Time

	// first reports whether this is the first response of its type: the client had nothing before,
	// and changes is not used. In other responses, changes has the differences from what the client
	// had before, by name. Once the response is sent, the session assumes that the client has them;
	// a refusal reverts that.
	first bool
	// merged reports whether changes includes those of older responses, some of which the client
	// may have accepted.
	merged  bool
	changes map[string]change

	// the response only restores an accepted version after a refusal; see extension.go
	restores bool
	trial    *trial // trial to which the response belongs; nil: none, or the answer is overdue
}

// change is a resource before and after a response; nil means that the resource does not exist.
type change struct{ before, after *resource.Resource }

// note adds a change to a response.
func (r *response) note(name string, before, after *resource.Resource) {
	if same(before, after) {
		return
	}
	if r.changes == nil {
		r.changes = map[string]change{}
	}
	r.changes[name] = change{before, after}
}

// allChanges yields all changes of a response. In a first response, each resource is a change.
func (r *response) allChanges(yield func(name string, c change) bool) {
	if r.first {
		for _, sent := range r.resources {
			if !yield(sent.Name, change{after: sent}) {
				return
			}
		}
	}
	for name, c := range r.changes {
		if !yield(name, c) {
			return
		}
	}
}

// body holds the encoded resources of a response.
type body struct {
	resources []*resource.Resource
	buffers   mem.BufferSlice
	size      int // size of the encoded resources in bytes
}

func newBody(resources []*resource.Resource, delta bool) *body {
	b := &body{resources: resources, buffers: make(mem.BufferSlice, len(resources))}
	for i, r := range resources {
		field := r.EncodedSotWResponseField()
		if delta {
			field = r.EncodedDeltaResponseField()
		}
		b.buffers[i] = mem.SliceBuffer(field)
		b.size += len(field)
	}
	return b
}

// frame returns the encoded response: a header of its own, followed by the body, which other
// streams may share.
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
		size := protowire.SizeTag(controlPlaneIdentityField) +
			protowire.SizeBytes(len(controlPlane))
		header = protowire.AppendVarint(header, uint64(size))
		text(controlPlaneIdentityField, controlPlane)
	}
	buffers := make(mem.BufferSlice, 0, 1+len(r.body.buffers))
	buffers = append(buffers, mem.SliceBuffer(header))
	return &frame{append(buffers, r.body.buffers...)}
}
