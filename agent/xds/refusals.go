package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"outrider.org/outrider/agent/condition"
)

// RefusalConditions raises conditions for the resources that clients refuse. It records each
// refusal with its stream: two epochs may differ in what they refuse, and the refusals of an epoch
// end with its stream. It is safe for concurrent use.
type RefusalConditions struct {
	board  *condition.Registry
	code   func(typeURL string) string
	prefix string // prefix of the text of each condition

	mu  sync.Mutex
	all map[refusedBy]string // sentences for people; "" if the refusal is reported in another way
}

// refusedBy identifies a refused resource and the stream that refused it.
type refusedBy struct {
	typeURL, name string
	stream        uint64
}

// NewRefusalConditions returns an empty RefusalConditions. code returns the condition code for
// refusals of a type.
func NewRefusalConditions(board *condition.Registry, code func(typeURL string) string,
	prefix string) *RefusalConditions {
	return &RefusalConditions{board: board, code: code, prefix: prefix, all: map[refusedBy]string{}}
}

// Add records that a stream refuses the named resources; without names, that it is unknown which
// ones it refuses. The sentence describes the refusal for people; "" if the refusal is reported in
// another way.
func (r *RefusalConditions) Add(stream uint64, typeURL string, names []string, sentence string) {
	if len(names) == 0 {
		names = []string{""}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.all[refusedBy{typeURL, name, stream}] = sentence
	}
	r.show(r.code(typeURL))
}

// RemoveAccepted records that a stream accepts the named resources. This also ends refusals of the
// type for which no name is known. It returns those names that no stream refuses any more.
func (r *RefusalConditions) RemoveAccepted(stream uint64, typeURL string, names []string) []string {
	return r.remove(func(by refusedBy) bool {
		return by.stream == stream && by.typeURL == typeURL &&
			(by.name == "" || slices.Contains(names, by.name))
	})
}

// RemoveStream removes all refusals of a stream that has ended.
func (r *RefusalConditions) RemoveStream(stream uint64) {
	r.remove(func(by refusedBy) bool { return by.stream == stream })
}

func (r *RefusalConditions) remove(gone func(refusedBy) bool) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// resources that no stream refuses any more, by type and name
	removed := map[refusedBy]bool{}
	codes := map[string]bool{}
	for by := range r.all {
		if gone(by) {
			delete(r.all, by)
			removed[refusedBy{by.typeURL, by.name, 0}], codes[r.code(by.typeURL)] = true, true
		}
	}
	for by := range r.all {
		delete(removed, refusedBy{by.typeURL, by.name, 0})
	}
	for by := range removed {
		names = append(names, by.name)
	}
	for code := range codes {
		r.show(code)
	}
	slices.Sort(names)
	return names
}

// maxSentences bounds the sentences in the text of a condition, because one mistake can make
// hundreds of resources invalid.
const maxSentences = 3

// show raises or clears the condition with the given code. The caller must hold mu.
func (r *RefusalConditions) show(code string) {
	// each sentence once, because several resources and streams may have the same one
	sentences := map[string]struct{}{}
	for by, sentence := range r.all {
		if r.code(by.typeURL) == code && sentence != "" {
			sentences[sentence] = struct{}{}
		}
	}
	if len(sentences) == 0 {
		r.board.Clear(code)
		return
	}
	sorted := slices.Sorted(maps.Keys(sentences))
	more := ""
	if len(sorted) > maxSentences {
		more = fmt.Sprintf("; and %d more", len(sorted)-maxSentences)
		sorted = sorted[:maxSentences]
	}
	r.board.Raise(code, condition.Error, r.prefix+strings.Join(sorted, "; ")+more)
}
