package xds

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/resource"
)

// The unanswered responses of a client form a chain. Each records the names that it changes, and
// the versions that the client had before; nothing else records what the client has accepted.
// Clients answer in order. A busy Envoy answers only the last one of several responses; this answer
// then applies to the earlier ones, too.

// maxLate bounds the number of overdue responses of one type. If there are more, the two oldest are
// merged.
const maxLate = 8

// unanswered yields the responses for which an answer may still arrive, the oldest first.
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

// unansweredBytes returns the total size of unanswered responses. The newest response of each type
// does not count, because the client may still be reading it.
func (s *session) unansweredBytes() (size int) {
	for _, w := range s.order {
		for _, r := range w.late {
			size += r.body.size
		}
	}
	return size
}

// oldest returns the oldest unanswered response; nil if there is none.
func (w *watch) oldest() *response {
	for r := range w.unanswered {
		return r
	}
	return nil
}

// changing returns the oldest unanswered response that changes the resource with a name; nil if
// there is none. It ignores a first response, before which the client had nothing.
func (w *watch) changing(name string) *response {
	for r := range w.unanswered {
		if r.changesName(name) {
			return r
		}
	}
	return nil
}

// acknowledged returns the version of a resource that the client would have if it refused all
// unanswered responses; nil if it would have none. now is the version in the snapshot.
func (w *watch) acknowledged(name string, now *resource.Resource) *resource.Resource {
	if r := w.changing(name); r != nil {
		return r.changes[name].before
	}
	if d, ok := w.differs[name]; ok {
		return d.held
	}
	return now
}

// delay stops waiting for the answer to the last response. A late answer is still processed.
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

// answered returns the response with a nonce, merged with earlier responses that the client did not
// answer; nil if the response was forgotten.
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

// changesName reports whether the field changes contains a name. In a first response the field is
// not used; see allChanges.
func (r *response) changesName(name string) bool {
	_, ok := r.changes[name]
	return ok
}

// absorb merges the changes of an older response into r, so that the answer to r applies to both.
// Removals in the older response count as accepted.
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

// rebase corrects which version of a resource the client had before a response.
func (r *response) rebase(name string, before *resource.Resource) {
	after := r.changes[name].after
	delete(r.changes, name)
	r.note(name, before, after)
}

// revert records that the client does not have the resources of a response that it refused.
// Removals count as accepted. If responses were merged into it, the client may have some of the
// resources, so all are sent again.
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

// suspects returns the names of resources in a refused response that may have caused the refusal:
// past has those whose version was replaced by a later response or snapshot, open has the others.
// The caller must revert the response first.
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

// outdated reports whether the version of a resource that was sent has been replaced by a later
// response or snapshot.
func (s *session) outdated(w *watch, name string) bool {
	d, differs := w.differs[name]
	return w.changing(name) != nil || !differs || same(d.held, s.get(w, name))
}
