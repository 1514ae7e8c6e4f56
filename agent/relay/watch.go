package relay

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"
)

// watch records which resources of one type an Envoy subscribes to, and which it has.
type watch struct {
	typeURL string
	delta   bool
	all     bool            // Envoy subscribes to all resources of the type
	names   map[string]bool // names of resources that Envoy subscribes to
	version string          // last accepted version; only in the state of the world

	// held has the accepted resources. Those that Envoy already had when the stream opened may lack
	// their body. The map may be shared with the cache, and is never modified.
	held    map[string]resource
	pending []pending // responses that Envoy has not answered, oldest first
	served  bool      // a response was sent to Envoy on this stream
	shown   TypeStatus

	// Fields about the current upstream stream.
	// nonces of its last responses, the newest last
	nonces   []string
	answered bool // the upstream server has responded on its current stream

	initial int     // bytes of the names and versions in Envoy's first request of the type
	counted counted // memory of the type that counts against the session's share
}

// pending is a response that Envoy has not answered.
type pending struct {
	*response
	// size of the encoded message, which remains in memory because the response refers to it
	bytes int
	from  *link // link on which the response was received; nil: it is from the cache
}

// maxNonces is the number of nonces of the current upstream stream that are stored.
const maxNonces = 16

// newWatch returns the watch for the first request of a type. If known, the cached resources,
// contains a resource in the version that Envoy already has, the watch uses the cached content.
func newWatch(first *request, delta bool, known map[string]resource) *watch {
	w := &watch{typeURL: first.typeURL, delta: delta, held: map[string]resource{},
		names:   map[string]bool{},
		all:     len(first.names) == 0 || slices.Contains(first.names, "*"),
		version: first.version}
	for name, version := range first.initial {
		if version == withoutModule {
			continue
		}
		w.initial += len(name) + len(version) + 2*nameOverhead
		w.held[name] = resource{name: name, version: version}
		if cached, ok := known[name]; ok && cached.version == version {
			w.held[name] = cached
		}
	}
	return w
}

// reset clears the nonces of the previous upstream stream before a new one opens.
func (w *watch) reset() { w.nonces, w.answered = nil, false }

// current reports whether a request may be forwarded on the current upstream stream: it answers a
// response of this stream, or has no nonce.
func (w *watch) current(r *request) bool {
	return r.nonce == "" || slices.Contains(w.nonces, r.nonce)
}

// subscribe records the names in a request and reports whether the subscription changed.
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

// sent records that a response was sent to Envoy.
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

// forget removes the oldest unanswered response.
func (w *watch) forget() { w.pending = slices.Delete(w.pending, 0, 1) }

// has reports whether Envoy has accepted a version of an extension that has its module, or received
// one that it has not answered.
func (w *watch) has(name string) bool {
	_, held := w.held[name]
	return held || slices.ContainsFunc(w.pending, func(p pending) bool {
		return slices.ContainsFunc(p.resources, func(one resource) bool {
			return one.name == name && one.version != withoutModule
		})
	})
}

// acknowledge returns the response that a request answers; ok is false if it answers none. If the
// request accepts the response, acknowledge updates held.
func (w *watch) acknowledge(r *request) (answered pending, ok bool) {
	i := slices.IndexFunc(w.pending, func(p pending) bool { return p.nonce == r.nonce })
	if i < 0 || r.nonce == "" {
		return pending{}, false
	}
	answered = w.pending[i]
	if w.delta {
		w.pending = slices.Delete(w.pending, i, i+1)
	} else {
		// an answer to a response also answers all earlier ones
		w.pending = slices.Delete(w.pending, 0, i+1)
	}
	if r.refused {
		w.shown.RefusalReason, w.shown.RefusedVersion = r.refusal, answered.version
		return answered, true
	}
	w.accept(answered.response)
	w.shown = TypeStatus{Version: answered.version, Sent: w.shown.Sent, Accepted: time.Now(),
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
		if one.version != withoutModule {
			w.held[one.name] = one
		}
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

// requestBytes returns the number of bytes that the names and versions in Envoy's requests occupy.
func (w *watch) requestBytes() int {
	total := len(w.typeURL) + w.initial
	for name := range w.names {
		total += len(name) + nameOverhead
	}
	return total
}

// pendingBytes returns the number of bytes that unanswered responses occupy.
func (w *watch) pendingBytes() (total int) {
	for _, p := range w.pending {
		total += p.bytes + (len(p.resources)+len(p.removed))*nameOverhead
	}
	return total
}

// heldBytes returns the number of bytes that accepted resources occupy.
func (w *watch) heldBytes() (total int) {
	for _, one := range w.held {
		total += one.size()
	}
	return total
}

// dropBodies drops the content of accepted resources, so that only their names and versions remain.
// It reports whether any resource had content.
func (w *watch) dropBodies() (dropped bool) {
	held := make(map[string]resource, len(w.held))
	for name, one := range w.held {
		dropped = dropped || one.body != nil
		held[name] = resource{name: one.name, version: one.version}
	}
	w.held = held
	return dropped
}

// complete reports whether all accepted resources have a body, so that they can be cached.
func (w *watch) complete() bool {
	for _, one := range w.held {
		if one.body == nil {
			return false
		}
	}
	return true
}

// resubscribe returns the first request of the type for a new upstream stream; nil if Envoy does
// not subscribe to the type. The request contains the versions that Envoy has, so that the upstream
// server sends only changes.
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

// fromCache returns a response with those cached resources that Envoy does not have; nil if there
// are none.
func (w *watch) fromCache(known map[string]resource, version string) *response {
	r := &response{typeURL: w.typeURL, version: version}
	for name, one := range known {
		held, ok := w.held[name]
		// Resources of istiod have no versions of their own, so the bodies are compared, too.
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
