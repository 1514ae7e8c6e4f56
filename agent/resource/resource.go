// Package resource holds xDS resources, which are encoded once and shared by all connections, and
// the snapshots and feeds that distribute them.
package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// versionCharacters is the length of a resource's version, a hexadecimal hash.
const versionCharacters = 16

// Origin is a configuration object of the user from which a resource was translated.
type Origin struct {
	File      string `json:"file"`
	Line      int    `json:"line"` // line in the file, from 1; 0 if the object is in no file
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns "file:line Kind namespace/name".
func (o Origin) String() string { return Position(o.File, o.Line) + " " + o.Object() }

// Position returns "file:line", or only the file if line is 0.
func Position(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// Object returns the identity of the origin's object as "Kind namespace/name".
func (o Origin) Object() string { return fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name) }

// Resource is one encoded xDS resource. It is immutable and shared.
type Resource struct {
	Type    string // type URL of the resource
	Name    string
	Version string   // hash of the resource's content
	Origins []Origin // objects from which the resource was translated, the main one first

	// encoded is an envoy.service.discovery.v3.Resource, encoded as an element of the field
	// "resources" of a DeltaDiscoveryResponse: tag, length, message. The last field of this message
	// is the Any, with field number 2. "resources" of a DiscoveryResponse has field number 2, too,
	// and Any elements. So a suffix of the incremental form is the state-of-the-world form, and one
	// buffer holds both.
	encoded []byte
	delta   int // offset of the encoded Resource, after its tag and length
	state   int // offset of the Any, at its tag
	any     int // offset of the Any, after its tag and length
	value   int // offset of the message inside the Any
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

// New returns a resource with a message, which it validates and encodes.
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
	return FromEncoded(TypePrefix+string(message.ProtoReflect().Descriptor().FullName()), name,
		value, origins...), nil
}

// FromEncoded returns a resource with an encoded message. value is the message itself, not an Any.
func FromEncoded(typeURL, name string, value []byte, origins ...Origin) *Resource {
	return FromAny(typeURL, typeURL, name, value, origins...)
}

// FromAny does the same as FromEncoded for a message whose type URL differs from the one by which
// clients request the resource. Feeds whose refusals are stored must not contain such resources.
func FromAny(typeURL, messageType, name string, value []byte, origins ...Origin) *Resource {
	sum := sha256.Sum256(value)
	version := hex.EncodeToString(sum[:])[:versionCharacters]

	anySize := protowire.SizeTag(anyTypeURLField) + protowire.SizeBytes(len(messageType)) +
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
	b = protowire.AppendString(b, messageType)
	b = protowire.AppendTag(b, anyValueField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(value)))
	r.value = len(b)
	b = append(b, value...)
	r.encoded = b
	return r
}

// Key returns the resource's key.
func (r *Resource) Key() Key { return Key{r.Type, r.Name} }

// encodedDeltaResource returns the encoded envoy.service.discovery.v3.Resource (incremental xDS).
// Callers must not modify it.
func (r *Resource) encodedDeltaResource() []byte { return r.encoded[r.delta:] }

// EncodedAny returns the encoded google.protobuf.Any (state-of-the-world xDS). Callers must not
// modify it.
func (r *Resource) EncodedAny() []byte { return r.encoded[r.any:] }

// EncodedDeltaResponseField returns encodedDeltaResource preceded by the tag and length of the
// field "resources" of a DeltaDiscoveryResponse. An encoded response consists of its other fields
// and the EncodedDeltaResponseField of each of its resources. Callers must not modify the result.
func (r *Resource) EncodedDeltaResponseField() []byte { return r.encoded }

// EncodedSotWResponseField returns EncodedAny preceded by the tag and length of the field
// "resources" of a DiscoveryResponse. Callers must not modify it.
func (r *Resource) EncodedSotWResponseField() []byte { return r.encoded[r.state:] }

// stored is the JSON form of a Resource.
type stored struct {
	Key
	Version string `json:"version"`
	Value   []byte `json:"value"` // encoded message; null if only the version is known
}

var errSecret = errors.New("a secret must not be stored")

// MarshalJSON encodes the resource without its origins. It fails for a secret.
func (r *Resource) MarshalJSON() ([]byte, error) {
	if r.Type == SecretType {
		return nil, errSecret
	}
	s := stored{Key: r.Key(), Version: r.Version}
	if r.HasContent() {
		s.Value = r.EncodedMessage()
	}
	return json.Marshal(s)
}

// UnmarshalJSON decodes the result of MarshalJSON.
func (r *Resource) UnmarshalJSON(text []byte) error {
	var s stored
	err := json.Unmarshal(text, &s)
	*r = Resource{Type: s.Type, Name: s.Name, Version: s.Version}
	if s.Value != nil {
		*r = *FromEncoded(s.Type, s.Name, s.Value)
	}
	if err == nil && s.Type == SecretType {
		err = errSecret
	}
	return err
}

// EncodedMessage returns the encoded message. Callers must not modify it.
func (r *Resource) EncodedMessage() []byte { return r.encoded[r.value:] }
