package xds

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/resource"
)

// A client's unanswered responses form a chain. Each records the names that it changes and what the
// client had before; there is no other record of what the client accepted. Clients answer in order.
// A busy Envoy answers only the last of several responses; that answer then covers the earlier
// ones, too.

// maxLate bounds the number of responses of a type that were not answered in time. Beyond it, the
// two oldest count as one.
const maxLate = 8

// unanswered yields the responses that may still be answered, the oldest first.
func (w *watch) unanswered(yield func(*response) bool) {
	for _, r := range w.late {
		if !yield(r) {
			return
		}
	}
	if w.inflight != nil {
		yield(w.inflight)
	}
}

// unansweredBytes returns the size of the unanswered responses. It leaves out the newest response
// of each type, which the client may still be reading.
func (s *session) unansweredBytes() (size int) {
	for _, w := range s.order {
		for _, r := range w.late {
			size += r.body.size
		}
	}
	return size
}

// oldest returns the oldest unanswered response, nil if there is none.
func (w *watch) oldest() *response {
	for r := range w.unanswered {
		return r
	}
	return nil
}

// changing returns the oldest unanswered response that changes a name, nil if there is none. A
// first response is ignored, because the client has nothing while it is unanswered.
func (w *watch) changing(name string) *response {
	for r := range w.unanswered {
		if r.changesName(name) {
			return r
		}
	}
	return nil
}

// acknowledged returns the version of a resource that the client would have if it refused all
// unanswered responses; nil if it would have none. now is the snapshot's version.
func (w *watch) acknowledged(name string, now *resource.Resource) *resource.Resource {
	if r := w.changing(name); r != nil {
		return r.changes[name].before
	}
	if d, ok := w.differs[name]; ok {
		return d.held
	}
	return now
}

// delay stops the wait for the answer to the response in flight; a late answer still counts.
func (w *watch) delay() {
	r := w.inflight
	w.inflight = nil
	if w.trial != nil && r.trial == w.trial {
		w.trial.pass(w)
	}
	r.trial = nil
	if w.late = append(w.late, r); len(w.late) > maxLate {
		w.late[1].absorb(w.late[0])
		w.late = slices.Delete(w.late, 0, 1)
		maps.DeleteFunc(w.late[0].changes, func(name string, _ change) bool {
			return !w.wants(name)
		})
	}
}

// answered returns the response with a nonce, merged with earlier responses that the client
// skipped; nil if the response is no longer remembered.
func (w *watch) answered(nonce string) *response {
	at := slices.IndexFunc(w.late, func(late *response) bool { return late.nonce == nonce })
	var skipped []*response
	var answered *response
	switch {
	case at >= 0:
		skipped, answered, w.late = w.late[:at], w.late[at], w.late[at+1:]
	case w.inflight != nil && w.inflight.nonce == nonce:
		skipped, answered, w.late = w.late, w.inflight, nil
	}
	for _, older := range slices.Backward(skipped) {
		answered.absorb(older)
	}
	return answered
}

// changesName reports whether the field changes has a name. It never has those of a first response;
// see allChanges.
func (r *response) changesName(name string) bool {
	_, ok := r.changes[name]
	return ok
}

// absorb makes the answer to a response also cover an older response. Removals count as accepted.
func (r *response) absorb(older *response) {
	r.merged = true
	for name, c := range older.allChanges {
		switch {
		case !r.changesName(name):
			r.note(name, c.before, c.after)
		case c.after != nil:
			r.rebase(name, c.before)
		}
	}
}

// rebase corrects which version of a resource the client had before the response.
func (r *response) rebase(name string, before *resource.Resource) {
	after := r.changes[name].after
	delete(r.changes, name)
	r.note(name, before, after)
}

// revert records that the client does not have the resources of a refused response. Removals count
// as accepted. If the response is a merged one, its resources are sent again in any case, because
// the client may have some of them.
func (s *session) revert(w *watch, r *response) {
	set := s.snapshot.ByType(w.typeURL)
	for name, c := range r.allChanges {
		if c.after == nil {
			continue
		}
		if later := w.changing(name); later != nil {
			later.rebase(name, c.before)
			later.merged = later.merged || r.merged
		} else if r.merged && w.wants(name) {
			w.hold(name, c.before, set[name], true)
		} else if d, ok := w.differs[name]; ok && same(d.held, c.after) {
			w.hold(name, c.before, set[name], d.forced)
		} else if !ok && same(set[name], c.after) && w.wants(name) {
			w.hold(name, c.before, set[name], false)
		}
	}
}

// suspects returns the names of the resources in a refused response that may have caused the
// refusal. past has those whose version a later response or snapshot has replaced, open the others.
// The caller reverts the response first.
func (s *session) suspects(w *watch, r *response) (open, past []string) {
	for name, c := range r.allChanges {
		switch {
		case c.after == nil || !w.wants(name):
		case s.outdated(w, name):
			past = append(past, name)
		default:
			open = append(open, name)
		}
	}
	return open, past
}

// outdated reports whether a later response or snapshot has replaced the version of a resource that
// was sent.
func (s *session) outdated(w *watch, name string) bool {
	d, differs := w.differs[name]
	return w.changing(name) != nil || !differs || same(d.held, s.get(w, name))
}
