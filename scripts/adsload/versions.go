package adsload

import (
	"maps"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// versions are the versions of the resources of one client, or of all clients if they receive the
// same resources. The zero value is ready for use. It is safe for concurrent use.
type versions struct {
	mu    sync.Mutex
	known map[string]map[string]string // by type and name
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
			}
		case removedField:
			delete(known, string(value))
		}
	})
}

// of returns a copy of the versions of a type.
func (v *versions) of(typeURL string) map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.known[typeURL])
}
