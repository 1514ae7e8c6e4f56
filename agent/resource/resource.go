// Package resource holds what travels to Envoy: xDS resources, encoded once and shared by everyone who sends them, and
// the snapshots and feeds they come in.
package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The type URLs of what Outrider serves (xDS v3).
const (
	ClusterType       = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType      = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType      = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType         = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	SecretType        = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	ExtensionType     = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	RuntimeType       = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
	typeURLPrefix     = "type.googleapis.com/"
	versionCharacters = 16
)

// Origin is the object of the user's that a resource came from.
type Origin struct {
	File      string `json:"file"`
	Line      int    `json:"line"` // from 1
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String is "file:line Kind namespace/name".
func (o Origin) String() string {
	return fmt.Sprintf("%s:%d %s %s/%s", o.File, o.Line, o.Kind, o.Namespace, o.Name)
}

// Resource is one encoded xDS resource. It is immutable and shared.
type Resource struct {
	Type    string   // type URL
	Name    string   //
	Version string   // of the content: equal bytes have equal versions
	Origins []Origin // the objects it came from, the deciding one first

	delta []byte // envoy.service.discovery.v3.Resource, encoded
	any   []byte // google.protobuf.Any, a part of delta
}

// Field numbers of envoy.service.discovery.v3.Resource and of google.protobuf.Any.
const (
	resourceVersionField  = 1
	resourceResourceField = 2
	resourceNameField     = 3
	anyTypeURLField       = 1
	anyValueField         = 2
)

// New encodes message. It is an error if the message refuses itself (its Validate method, if it has one).
func New(name string, message proto.Message, origins ...Origin) (*Resource, error) {
	if v, ok := message.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return nil, fmt.Errorf("%s %q: %w", message.ProtoReflect().Descriptor().Name(), name, err)
		}
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode %q: %w", name, err)
	}
	return FromEncoded(typeURLPrefix+string(message.ProtoReflect().Descriptor().FullName()), name, value, origins...), nil
}

// FromEncoded wraps a resource that is encoded already (value is the message, without its Any).
func FromEncoded(typeURL, name string, value []byte, origins ...Origin) *Resource {
	sum := sha256.Sum256(value)
	version := hex.EncodeToString(sum[:])[:versionCharacters]

	anySize := protowire.SizeTag(anyTypeURLField) + protowire.SizeBytes(len(typeURL)) +
		protowire.SizeTag(anyValueField) + protowire.SizeBytes(len(value))
	size := protowire.SizeTag(resourceVersionField) + protowire.SizeBytes(len(version)) +
		protowire.SizeTag(resourceNameField) + protowire.SizeBytes(len(name)) +
		protowire.SizeTag(resourceResourceField) + protowire.SizeBytes(anySize)
	delta := make([]byte, 0, size)
	delta = protowire.AppendTag(delta, resourceVersionField, protowire.BytesType)
	delta = protowire.AppendString(delta, version)
	delta = protowire.AppendTag(delta, resourceNameField, protowire.BytesType)
	delta = protowire.AppendString(delta, name)
	delta = protowire.AppendTag(delta, resourceResourceField, protowire.BytesType)
	delta = protowire.AppendVarint(delta, uint64(anySize))
	start := len(delta)
	delta = protowire.AppendTag(delta, anyTypeURLField, protowire.BytesType)
	delta = protowire.AppendString(delta, typeURL)
	delta = protowire.AppendTag(delta, anyValueField, protowire.BytesType)
	delta = protowire.AppendBytes(delta, value)
	return &Resource{Type: typeURL, Name: name, Version: version, Origins: origins, delta: delta, any: delta[start:]}
}

// Delta is the encoded envoy.service.discovery.v3.Resource (incremental xDS). Not to be written to.
func (r *Resource) Delta() []byte { return r.delta }

// Any is the encoded google.protobuf.Any (state-of-the-world xDS). Not to be written to.
func (r *Resource) Any() []byte { return r.any }
