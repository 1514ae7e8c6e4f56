package adsload

import (
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// versions are the versions of the resources of one client, or of all clients if they receive the
// same resources. The zero value is ready for use. It is safe for concurrent use.
type versions struct {
	mu    sync.Mutex
	known map[string]map[string]string // by type and name
	// field initial_resource_versions, made from known on demand; by type
	encoded map[string][]byte
}

// learn records the versions of the resources in an incremental response, and deletes those of
// removed resources.
func (v *versions) learn(r Response) {
	const nameField, version = 3, 1
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.known[r.TypeURL]
	if known == nil {
		if v.known == nil {
			v.known = map[string]map[string]string{}
		}
		known = map[string]string{}
		v.known[r.TypeURL] = known
	}
	// the message is well-formed: scan has parsed it
	_ = fields(r.raw, func(number protowire.Number, value []byte) {
		switch number {
		case resourcesField:
			name, now := first(value, nameField), first(value, version)
			if known[string(name)] != string(now) {
				known[string(name)] = string(now)
				delete(v.encoded, r.TypeURL)
			}
		case removedField:
			delete(known, string(value))
			delete(v.encoded, r.TypeURL)
		}
	})
}

// encode returns the versions of a type as the field initial_resource_versions of a request.
// Clients that have the same resources share it.
func (v *versions) encode(typeURL string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if encoded, ok := v.encoded[typeURL]; ok {
		return encoded, nil
	}
	encoded, err := proto.Marshal(
		&discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: v.known[typeURL]})
	if err != nil {
		return nil, err
	}
	if v.encoded == nil {
		v.encoded = map[string][]byte{}
	}
	v.encoded[typeURL] = encoded
	return encoded, nil
}
