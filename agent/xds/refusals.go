package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Refusals tracks the resources that clients refuse, by stream, for an Observer: two epochs may
// differ, and the refusals of an epoch end with it. It is safe for concurrent use.
type Refusals struct {
	mu  sync.Mutex
	all map[refusedBy]string // sentence; "" if reported elsewhere
}

// refusedBy identifies a refused resource and the stream that refused it.
type refusedBy struct {
	typeURL, name string
	stream        uint64
}

// NewRefusals returns an empty Refusals.
func NewRefusals() *Refusals { return &Refusals{all: map[refusedBy]string{}} }

// Add records a refusal. The sentence is for people; "": it is reported elsewhere.
func (r *Refusals) Add(stream Stream, refusal Refusal, sentence string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range refusal.Resources {
		r.all[refusedBy{refusal.Type, name, stream.ID}] = sentence
	}
	if len(refusal.Resources) == 0 {
		r.all[refusedBy{refusal.Type, "", stream.ID}] = sentence
	}
}

// Cured records that a stream accepts resources again. It returns those that no stream refuses any
// longer.
func (r *Refusals) Cured(stream Stream, typeURL string, names []string) []string {
	return r.remove(func(by refusedBy) bool {
		return by.stream == stream.ID && by.typeURL == typeURL &&
			(by.name == "" || slices.Contains(names, by.name))
	})[typeURL]
}

// Ended removes the refusals of a stream. It returns, by type, the resources that no stream refuses
// any longer.
func (r *Refusals) Ended(stream Stream) map[string][]string {
	return r.remove(func(by refusedBy) bool { return by.stream == stream.ID })
}

func (r *Refusals) remove(gone func(refusedBy) bool) map[string][]string {
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

// maxSentences bounds the sentences in a message: one mistake can invalidate hundreds
// of resources.
const maxSentences = 3

// Sentence describes the refused resources of a type; "" if there are none.
func (r *Refusals) Sentence(typeURL string) string {
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
	if len(sorted) > maxSentences {
		more = fmt.Sprintf("; and %d more", len(sorted)-maxSentences)
		sorted = sorted[:maxSentences]
	}
	return strings.Join(sorted, "; ") + more
}
