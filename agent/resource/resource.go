// Package resource holds what travels to Envoy: xDS resources, encoded once and shared by everyone
// who sends them, and the snapshots and feeds they come in.
package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The type URLs of what Outrider serves (xDS v3).
const (
	ClusterType   = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType  = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType  = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType     = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	SecretType    = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	ExtensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	RuntimeType   = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
	// which agents ask for, and no Envoy
	ProxyConfigType   = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
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

// Resource is one encoded xDS resource. It is shared, and immutable but for whether it was accepted.
type Resource struct {
	Type    string   // type URL
	Name    string   //
	Version string   // of the content: equal bytes have equal versions
	Origins []Origin // the objects it came from, the deciding one first

	// encoded is envoy.service.discovery.v3.Resource as the field "resources" of a
	// DeltaDiscoveryResponse: tag, length, message. The Any inside it is field 2 of that message,
	// and "resources" of a DiscoveryResponse is field 2 too: what state-of-the-world xDS sends is a
	// suffix of what incremental xDS sends, and one buffer holds both.
	encoded []byte
	delta   int // where the Resource begins, after tag and length
	state   int // where the Any begins, with tag and length
	any     int // where the Any begins, after tag and length
	value   int // where the message itself begins

	accepted atomic.Bool
}

// Field numbers of envoy.service.discovery.v3.Resource, of google.protobuf.Any, and of "resources"
// in both DiscoveryResponse and DeltaDiscoveryResponse.
const (
	responseResourcesField = 2

	resourceVersionField  = 1
	resourceResourceField = 2
	resourceNameField     = 3
	anyTypeURLField       = 1
	anyValueField         = 2
)

// New encodes message. It is an error if the message refuses itself (its Validate method, if it has
// one).
func New(name string, message proto.Message, origins ...Origin) (*Resource, error) {
	if v, ok := message.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return nil, fmt.Errorf("%s %q: %w", message.ProtoReflect().Descriptor().Name(), name,
				err)
		}
	}
	value, err := Encode(message)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return FromEncoded(typeURLPrefix+string(message.ProtoReflect().Descriptor().FullName()), name,
		value, origins...), nil
}

// FromEncoded wraps a resource that is encoded already (value is the message, without its Any).
func FromEncoded(typeURL, name string, value []byte, origins ...Origin) *Resource {
	sum := sha256.Sum256(value)
	version := hex.EncodeToString(sum[:])[:versionCharacters]

	anySize := protowire.SizeTag(anyTypeURLField) + protowire.SizeBytes(len(typeURL)) +
		protowire.SizeTag(anyValueField) + protowire.SizeBytes(len(value))
	resourceSize := protowire.SizeTag(resourceVersionField) + protowire.SizeBytes(len(version)) +
		protowire.SizeTag(resourceNameField) + protowire.SizeBytes(len(name)) +
		protowire.SizeTag(resourceResourceField) + protowire.SizeBytes(anySize)

	r := &Resource{Type: typeURL, Name: name, Version: version, Origins: origins}
	b := make([]byte, 0, protowire.SizeTag(responseResourcesField)+protowire.SizeBytes(
		resourceSize))
	b = protowire.AppendTag(b, responseResourcesField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(resourceSize))
	r.delta = len(b)
	b = protowire.AppendTag(b, resourceVersionField, protowire.BytesType)
	b = protowire.AppendString(b, version)
	b = protowire.AppendTag(b, resourceNameField, protowire.BytesType)
	b = protowire.AppendString(b, name)
	r.state = len(b)
	b = protowire.AppendTag(b, resourceResourceField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(anySize))
	r.any = len(b)
	b = protowire.AppendTag(b, anyTypeURLField, protowire.BytesType)
	b = protowire.AppendString(b, typeURL)
	b = protowire.AppendTag(b, anyValueField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(value)))
	r.value = len(b)
	b = append(b, value...)
	r.encoded = b
	return r
}

// Accept records that a client accepted the resource. A nil Resource ignores it.
func (r *Resource) Accept() {
	if r != nil && !r.accepted.Load() { // written once, as many clients share it
		r.accepted.Store(true)
	}
}

// Accepted reports whether any client accepted the resource.
func (r *Resource) Accepted() bool { return r.accepted.Load() }

// Key is what names it.
func (r *Resource) Key() Key { return Key{r.Type, r.Name} }

// Delta is the encoded envoy.service.discovery.v3.Resource (incremental xDS). Not to be written to.
func (r *Resource) Delta() []byte { return r.encoded[r.delta:] }

// Any is the encoded google.protobuf.Any (state-of-the-world xDS). Not to be written to.
func (r *Resource) Any() []byte { return r.encoded[r.any:] }

// DeltaField is Delta with the tag and length of the field "resources" of a DeltaDiscoveryResponse
// before it: a response is its other fields and these, one after another. Not to be written to.
func (r *Resource) DeltaField() []byte { return r.encoded }

// StateField is Any with the tag and length of the field "resources" of a DiscoveryResponse before
// it. Not to be written to.
func (r *Resource) StateField() []byte { return r.encoded[r.state:] }

// Value is the encoded message itself. Not to be written to.
func (r *Resource) Value() []byte { return r.encoded[r.value:] }
