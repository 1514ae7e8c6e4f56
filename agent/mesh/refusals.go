package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"outrider.org/outrider/agent/xds"
)

// refusals tracks the resources that Envoys refuse, by stream: two epochs may differ, and the
// refusals of an epoch end with it.
type refusals struct {
	mu  sync.Mutex
	all map[refusedBy]string // sentence; "" if reported elsewhere
}

// refusedBy identifies a refused resource and the stream that refused it.
type refusedBy struct {
	typeURL, name string
	stream        uint64
}

func newRefusals() *refusals { return &refusals{all: map[refusedBy]string{}} }

// add records a refusal.
func (r *refusals) add(stream xds.Stream, refusal xds.Refusal, sentence string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range refusal.Resources {
		r.all[refusedBy{refusal.Type, name, stream.ID}] = sentence
	}
	if len(refusal.Resources) == 0 {
		r.all[refusedBy{refusal.Type, "", stream.ID}] = sentence
	}
}

// cured records that a stream accepts resources again. It returns those that no stream refuses any
// longer.
func (r *refusals) cured(stream xds.Stream, typeURL string, names []string) []string {
	return r.remove(func(by refusedBy) bool {
		return by.stream == stream.ID && by.typeURL == typeURL &&
			(by.name == "" || slices.Contains(names, by.name))
	})[typeURL]
}

// ended removes the refusals of a stream. It returns, by type, the resources that no stream refuses
// any longer.
func (r *refusals) ended(stream xds.Stream) map[string][]string {
	return r.remove(func(by refusedBy) bool { return by.stream == stream.ID })
}

func (r *refusals) remove(gone func(refusedBy) bool) map[string][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	removed := map[string][]string{}
	for by := range r.all {
		if gone(by) {
			delete(r.all, by)
			removed[by.typeURL] = append(removed[by.typeURL], by.name)
		}
	}
	for by := range r.all {
		removed[by.typeURL] = slices.DeleteFunc(removed[by.typeURL],
			func(name string) bool { return name == by.name })
	}
	for typeURL := range removed {
		slices.Sort(removed[typeURL])
	}
	return removed
}

// shownRefusals bounds the sentences and versions in a message: one mistake can invalidate hundreds
// of resources.
const shownRefusals = 3

// sentence describes the refused resources of a type; "" if there are none.
func (r *refusals) sentence(typeURL string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	// several resources and streams may share one sentence
	sentences := map[string]struct{}{}
	for by, sentence := range r.all {
		if by.typeURL == typeURL && sentence != "" {
			sentences[sentence] = struct{}{}
		}
	}
	sorted := slices.Sorted(maps.Keys(sentences))
	more := ""
	if len(sorted) > shownRefusals {
		more = fmt.Sprintf("; and %d more", len(sorted)-shownRefusals)
		sorted = sorted[:shownRefusals]
	}
	return strings.Join(sorted, "; ") + more
}
