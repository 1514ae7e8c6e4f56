package xds

import (
	"slices"
	"strings"
	"sync"

	"outrider.org/outrider/agent/resource"
)

// bodies keeps, for the streams that follow one feed, the body of a response that carries every
// resource of a type: a hundred clients that connect at once are sent the same buffers.
type bodies struct {
	mu   sync.Mutex
	kept map[bodyKey]keptBody
}

type bodyKey struct {
	typeURL string
	delta   bool
}

type keptBody struct {
	changed uint64 // resource.Snapshot.Changed of its type
	body    *body
}

func newBodies() *bodies { return &bodies{kept: map[bodyKey]keptBody{}} }

// all returns the body with everything of a type in the snapshot, by name.
func (b *bodies) all(snapshot *resource.Snapshot, typeURL string, delta bool) *body {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, changed := bodyKey{typeURL, delta}, snapshot.Changed(typeURL)
	kept, ok := b.kept[key]
	if ok && kept.changed == changed {
		return kept.body
	}
	set := snapshot.Set(typeURL)
	resources := make([]*resource.Resource, 0, len(set))
	for _, r := range set {
		resources = append(resources, r)
	}
	slices.SortFunc(resources, func(x, y *resource.Resource) int {
		return strings.Compare(x.Name,
			y.Name)
	})
	made := newBody(resources, delta)
	// a stream that is behind does not displace what the others use
	if !ok || kept.changed < changed {
		b.kept[key] = keptBody{changed, made}
	}
	return made
}
