package xds

import (
	"slices"

	"outrider.org/outrider/agent/resource"
)

// What a client was told and has not answered is a chain: each response knows of the names that it changes what the client had before,
// and the first that changes a name thereby knows what it took last. So nothing is kept of what clients took beside what they hold, but
// for the few names of responses that are given up on for good.

// maxLate bounds the responses of a type that may still be answered after they were given up on.
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

// oldest returns the first of them, nil if there is none.
func (w *watch) oldest() *response {
	for r := range w.unanswered {
		return r
	}
	return nil
}

// changing returns the first of them that changes a name, nil if none does. A first response is not looked into: it is the oldest, and once
// it is answered it is none of them.
func (w *watch) changing(name string) *response {
	for r := range w.unanswered {
		if r.tells(name) {
			return r
		}
	}
	return nil
}

// goesOn returns what the client has under a name if it refuses all that it has not answered, nil if nothing. now is what the snapshot holds.
func (w *watch) goesOn(name string, now *resource.Resource) *resource.Resource {
	if r := w.changing(name); r != nil {
		return r.changes[name].before
	}
	if d, ok := w.differs[name]; ok {
		return d.held
	}
	return now
}

// acknowledged returns the last version that the client said it took, where held is what goes on; nil if that is none.
func (w *watch) acknowledged(name string, held *resource.Resource) *resource.Resource {
	if last, unsure := w.unsure[name]; unsure {
		return last
	}
	return held
}

// acknowledge takes in that the client took a response. One with the whole state has all in it that came before.
func (w *watch) acknowledge(r *response) {
	if w.full {
		clear(w.unsure)
	}
	for name := range w.unsure {
		if r.tells(name) {
			delete(w.unsure, name)
		}
	}
}

// delay has the response under way be answered late, if ever.
func (w *watch) delay() {
	r := w.inflight
	w.inflight = nil
	if w.trial != nil && r.trial == w.trial {
		w.trial.pass(w)
	}
	r.trial = nil
	if len(w.late) == maxLate {
		w.forget(w.late[0])
		w.late = slices.Delete(w.late, 0, 1)
	}
	w.late = append(w.late, r)
}

// forget gives up on the answer to the oldest response for good: the client counts as having what it told, but has not said so.
func (w *watch) forget(r *response) {
	if w.unsure == nil {
		w.unsure = map[string]*resource.Resource{}
	}
	if len(w.unsure) == 0 {
		w.unsureSince = w.confirmed
	}
	for name, c := range r.told {
		_, unsure := w.unsure[name]
		switch {
		case c.after == nil: // whatever it had: it is gone
			delete(w.unsure, name)
		case !unsure && w.wants(name):
			w.unsure[name] = c.before
		}
	}
}

// answered returns the response that a request answers, nil if that is not known any more. Answers come in order: those before it get none.
func (s *session) answered(w *watch, r *request) *response {
	at := slices.IndexFunc(w.late, func(late *response) bool { return late.nonce == r.nonce })
	var skipped []*response
	var answered *response
	switch {
	case at >= 0:
		skipped, answered, w.late = w.late[:at], w.late[at], w.late[at+1:]
	case w.inflight != nil && w.inflight.nonce == r.nonce:
		skipped, answered, w.late = w.late, w.inflight, nil
	default:
		return nil
	}
	if len(skipped) == 0 && (s.delta || r.refusal == nil || !w.full || len(w.unsure) == 0) {
		return answered
	}
	chain := append(slices.Clone(skipped), answered)
	switch {
	case s.delta || r.refusal == nil && !w.full:
		for _, older := range skipped {
			w.forget(older)
		}
	case r.refusal != nil:
		s.judgeSkipped(w, chain, r.version)
	default: // it has taken all: each is in the next again
		for i, older := range skipped {
			chain[i+1].absorb(older)
		}
	}
	return answered
}

// judgeSkipped takes in the refusal of the last of a chain of responses, where the others get no answer. With state of the world Envoy answers
// several at once when it was busy with clusters; the version that it says is of the last one that it took, so that it refused those after
// that.
func (s *session) judgeSkipped(w *watch, chain []*response, version string) {
	last, taken := len(chain)-1, -1
	if version == w.unsureSince { // none, and nothing that was forgotten either
		for name, before := range w.unsure {
			if at := slices.IndexFunc(chain, func(r *response) bool { return r.tells(name) }); at >= 0 {
				chain[at].rebase(name, before)
			} else {
				chain[last].note(name, before, w.goesOn(name, s.get(w, name)))
			}
		}
		clear(w.unsure)
	} else {
		for taken = last - 1; taken >= 0 && chain[taken].version != version; taken-- {
		}
	}
	for i, r := range chain[:last] {
		switch {
		case i == taken:
			s.settle(w, r, nil)
		case i > taken || w.full: // refused too, or in the next again
			chain[i+1].absorb(r)
		default:
			w.forget(r)
		}
	}
}

// tells is whether a response that is not the first changes a name.
func (r *response) tells(name string) bool {
	_, ok := r.changes[name]
	return ok
}

// absorb has the answer to a response count for the one before it too. Removals are taken as done.
func (r *response) absorb(older *response) {
	for name, c := range older.told {
		switch {
		case !r.tells(name):
			r.note(name, c.before, c.after)
		case c.after != nil:
			r.rebase(name, c.before)
		}
	}
}

// rebase takes in that the client had another version of a name before than it was thought to.
func (r *response) rebase(name string, before *resource.Resource) {
	after := r.changes[name].after
	delete(r.changes, name)
	r.note(name, before, after)
}

// revert takes back that the client holds what a response told it, and strikes it out of what it is known to have had before later ones.
// Removals are taken as done: there is nothing to be put right.
func (s *session) revert(w *watch, r *response) {
	set := s.snapshot.Set(w.typeURL)
	for name, c := range r.told {
		if c.after == nil {
			continue
		}
		if later := w.changing(name); later != nil {
			later.rebase(name, c.before)
		} else if d, ok := w.differs[name]; ok && same(d.held, c.after) {
			w.hold(name, c.before, set[name], d.forced)
		} else if !ok && same(set[name], c.after) && w.wants(name) {
			w.hold(name, c.before, set[name], false)
		}
	}
}

// suspects are what a response that was reverted told anew: what the client would be sent again, and what something else has taken the
// place of since.
func (s *session) suspects(w *watch, r *response) (open, past []string) {
	for name, c := range r.told {
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

// outdated tells whether what was sent under a name counts no more: the client was told something else since, or is to have again what it
// has.
func (s *session) outdated(w *watch, name string) bool {
	d, differs := w.differs[name]
	return w.changing(name) != nil || !differs || same(d.held, s.get(w, name))
}
