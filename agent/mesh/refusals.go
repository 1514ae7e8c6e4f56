package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"outrider.org/outrider/agent/xds"
)

// refusals are the resources that Envoys refuse now, each by the stream that refused it: two epochs
// may be of two minds, and what an epoch refused ends with it.
type refusals struct {
	mu  sync.Mutex
	all map[refusedBy]string // → the sentence for people; "": elsewhere
}

// refusedBy is who refuses what.
type refusedBy struct {
	typeURL, name string
	stream        uint64
}

func newRefusals() *refusals { return &refusals{all: map[refusedBy]string{}} }

// add takes in a refusal.
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

// cured takes in that a stream accepts some resources again, and returns those that none refuses
// any more.
func (r *refusals) cured(stream xds.Stream, typeURL string, names []string) []string {
	return r.remove(func(by refusedBy) bool {
		return by.stream == stream.ID && by.typeURL == typeURL && (by.name == "" || slices.Contains(names, by.name))
	})[typeURL]
}

// ended takes in that a stream is no more, and returns by type what none refuses any more.
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
		removed[by.typeURL] = slices.DeleteFunc(removed[by.typeURL], func(name string) bool { return name == by.name })
	}
	for typeURL := range removed {
		slices.Sort(removed[typeURL])
	}
	return removed
}

// toldRefusals bounds the sentences of a type's condition: one mistake can make hundreds of
// resources wrong.
const toldRefusals = 3

// sentence says what is refused of a type; "" if nothing is.
func (r *refusals) sentence(typeURL string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	// one refusal is of several resources, and of several streams
	sentences := map[string]struct{}{}
	for by, sentence := range r.all {
		if by.typeURL == typeURL && sentence != "" {
			sentences[sentence] = struct{}{}
		}
	}
	sorted := slices.Sorted(maps.Keys(sentences))
	more := ""
	if len(sorted) > toldRefusals {
		more = fmt.Sprintf("; and %d more", len(sorted)-toldRefusals)
		sorted = sorted[:toldRefusals]
	}
	return strings.Join(sorted, "; ") + more
}
