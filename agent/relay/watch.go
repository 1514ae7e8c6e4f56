package relay

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"
)

// watch is what an Envoy subscribes to and has of one type.
type watch struct {
	typeURL string
	delta   bool
	all     bool            // wildcard
	names   map[string]bool // subscribed
	version string          // last accepted, state of the world

	// held is accepted; without body if the Envoy had it before this stream. The cache shares the
	// map, which is never modified.
	held    map[string]resource
	pending []pending // responses without an answer, oldest first
	served  bool      // a response was sent on this stream
	shown   Type

	// of the current upstream stream
	nonces   []string // last responses
	answered bool     // it has responded

	initial int     // bytes of the names and versions in the first request
	counted counted // taken from the session's share
}

// pending is a response that Envoy has not answered.
type pending struct {
	*response
	bytes int   // of the message, which the response refers to
	from  *link // nil: the cache
}

// maxNonces bounds the nonces that are recognised as those of the current upstream stream.
const maxNonces = 16

// newWatch returns the watch for the first request of a type. known has cached resources, from
// which those that the Envoy already has get their body.
func newWatch(first *request, delta bool, known map[string]resource) *watch {
	w := &watch{typeURL: first.typeURL, delta: delta, held: map[string]resource{},
		names:   map[string]bool{},
		all:     len(first.names) == 0 || slices.Contains(first.names, "*"),
		version: first.version}
	for name, version := range first.initial {
		w.initial += len(name) + len(version) + 2*nameOverhead
		w.held[name] = resource{name: name, version: version}
		if cached, ok := known[name]; ok && cached.version == version {
			w.held[name] = cached
		}
	}
	return w
}

// reset forgets the current upstream stream.
func (w *watch) reset() { w.nonces, w.answered = nil, false }

// current reports whether a request answers the current upstream stream, or no response at all.
func (w *watch) current(r *request) bool {
	return r.nonce == "" || slices.Contains(w.nonces, r.nonce)
}

// subscribe records the names of a request and reports whether they changed.
func (w *watch) subscribe(r *request) bool {
	if !w.delta {
		names := make(map[string]bool, len(r.names))
		for _, name := range r.names {
			names[name] = true
		}
		changed := !maps.Equal(w.names, names)
		w.names = names
		return changed
	}
	for _, name := range r.names {
		w.names[name] = true
		w.all = w.all || name == "*"
	}
	if len(r.unsubscribed) > 0 {
		w.held = maps.Clone(w.held)
	}
	for _, name := range r.unsubscribed {
		delete(w.names, name)
		if name == "*" {
			w.all = false
		} else if !w.all {
			delete(w.held, name)
		}
	}
	return len(r.names) > 0 || len(r.unsubscribed) > 0
}

// sent records a response that was sent to Envoy.
func (w *watch) sent(r *response, bytes int, from *link) {
	w.served = true
	w.shown.Sent = time.Now()
	if from != nil {
		w.answered = true
		w.nonces = append(w.nonces, r.nonce)
		w.nonces = w.nonces[max(0, len(w.nonces)-maxNonces):]
	}
	w.pending = append(w.pending, pending{r, bytes, from})
	if len(w.pending) > maxPending {
		w.forget()
	}
}

// forget drops the oldest unanswered response.
func (w *watch) forget() { w.pending = slices.Delete(w.pending, 0, 1) }

// acknowledge returns the response that a request answers; ok is false if there is none. An
// accepted response changes what is held.
func (w *watch) acknowledge(r *request) (answered pending, ok bool) {
	i := slices.IndexFunc(w.pending, func(p pending) bool { return p.nonce == r.nonce })
	if i < 0 || r.nonce == "" {
		return pending{}, false
	}
	answered = w.pending[i]
	if w.delta {
		w.pending = slices.Delete(w.pending, i, i+1)
	} else {
		w.pending = slices.Delete(w.pending, 0, i+1) // the latest answer counts
	}
	if r.refused {
		w.shown.Refused, w.shown.RefusedVersion = r.refusal, answered.version
		return answered, true
	}
	w.accept(answered.response)
	w.shown = Type{Version: answered.version, Sent: w.shown.Sent, Accepted: time.Now(),
		Cached: answered.from == nil}
	return answered, true
}

func (w *watch) accept(r *response) {
	if w.delta || !w.all {
		w.held = maps.Clone(w.held)
	} else {
		w.held = make(map[string]resource, len(r.resources))
	}
	for _, one := range r.resources {
		w.held[one.name] = one
	}
	for _, name := range r.removed {
		delete(w.held, name)
	}
	if !w.delta {
		w.version = r.version
		if !w.all {
			maps.DeleteFunc(w.held,
				func(name string, _ resource) bool { return !w.names[name] })
		}
	}
}

// requestBytes returns what the requests of Envoy hold.
func (w *watch) requestBytes() int {
	total := len(w.typeURL) + w.initial
	for name := range w.names {
		total += len(name) + nameOverhead
	}
	return total
}

// pendingBytes returns what unanswered responses hold.
func (w *watch) pendingBytes() (total int) {
	for _, p := range w.pending {
		total += p.bytes + (len(p.resources)+len(p.removed))*nameOverhead
	}
	return total
}

// heldBytes returns what accepted resources hold.
func (w *watch) heldBytes() (total int) {
	for _, one := range w.held {
		total += one.size()
	}
	return total
}

// dropBodies holds only names and versions. It reports whether there were bodies.
func (w *watch) dropBodies() (dropped bool) {
	held := make(map[string]resource, len(w.held))
	for name, one := range w.held {
		dropped = dropped || one.body != nil
		held[name] = resource{name: one.name, version: one.version}
	}
	w.held = held
	return dropped
}

// complete reports whether all held resources have a body, so that they can be cached.
func (w *watch) complete() bool {
	for _, one := range w.held {
		if one.body == nil {
			return false
		}
	}
	return true
}

// resubscribe returns the first request of the type on a new upstream stream, nil if there is no
// subscription. It makes the server continue from what Envoy has.
func (w *watch) resubscribe() *request {
	if !w.all && len(w.names) == 0 {
		return nil
	}
	r := &request{typeURL: w.typeURL, names: slices.Sorted(maps.Keys(w.names))}
	if !w.delta {
		r.version = w.version
		return r
	}
	if w.all && len(w.names) > 0 && !w.names["*"] {
		r.names = append([]string{"*"}, r.names...)
	}
	r.initial = map[string]string{}
	for name, one := range w.held {
		r.initial[name] = one.version
	}
	return r
}

// fromCache returns a response with the cached resources that Envoy lacks, nil if there are none.
func (w *watch) fromCache(known map[string]resource, version string) *response {
	r := &response{typeURL: w.typeURL, version: version}
	for name, one := range known {
		held, ok := w.held[name]
		// istiod's resources have no version of their own.
		same := ok && held.version == one.version && bytes.Equal(held.body, one.body)
		if (w.all || w.names[name]) && (!w.delta || !same) {
			r.resources = append(r.resources, one)
		}
	}
	switch {
	case !w.delta && version == w.version && (w.all || len(r.resources) <= len(w.held)):
		return nil
	case len(r.resources) == 0 && (w.served || !w.all || len(w.held) > 0):
		return nil
	}
	slices.SortFunc(r.resources,
		func(a, b resource) int { return strings.Compare(a.name, b.name) })
	return r
}
