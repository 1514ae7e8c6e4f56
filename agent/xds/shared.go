package xds

import (
	"slices"
	"strings"
	"sync"

	"outrider.org/outrider/agent/resource"
)

// bodies caches encoded bodies that contain all resources of a type, for the streams of one feed.
// Clients that connect simultaneously then share the buffers.
type bodies struct {
	mu     sync.Mutex
	cached map[bodyKey]cachedBody
}

type bodyKey struct {
	typeURL string
	delta   bool
}

type cachedBody struct {
	changed uint64 // result of resource.Snapshot.LastChange for the type
	body    *body
}

func newBodies() *bodies { return &bodies{cached: map[bodyKey]cachedBody{}} }

// all returns the encoded body that contains all resources of a type, sorted by name.
func (b *bodies) all(snapshot *resource.Snapshot, typeURL string, delta bool) *body {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, changed := bodyKey{typeURL, delta}, snapshot.LastChange(typeURL)
	cached, ok := b.cached[key]
	if ok && cached.changed == changed {
		return cached.body
	}
	set := snapshot.ByType(typeURL)
	resources := make([]*resource.Resource, 0, len(set))
	for _, r := range set {
		resources = append(resources, r)
	}
	slices.SortFunc(resources, func(x, y *resource.Resource) int {
		return strings.Compare(x.Name, y.Name)
	})
	made := newBody(resources, delta)
	// the snapshot may be older than that of the cached body
	if !ok || cached.changed < changed {
		b.cached[key] = cachedBody{changed, made}
	}
	return made
}
