package xds

import (
	"iter"
	"maps"

	"outrider.org/outrider/agent/resource"
)

// Envoy retains the configuration of an extension that it refused as the last one of its name. A
// listener that names the extension is then refused, too, until Envoy gets another configuration;
// the refused one, sent again, would be accepted without effect. So each response has one
// configuration, to which a refusal belongs. After the refusal, Envoy gets the accepted version
// again or, without one, a removal, with which the default in the listener applies. Listeners wait
// for the answer to that. A version of which only the number is known, from an earlier stream,
// remains, but Envoy cannot get it again.

// oneByOne reports whether each response has one resource of the type at most.
func (w *watch) oneByOne() bool { return w.typeURL == resource.ExtensionType }

// startOneByOne makes the first response of a type one of several.
func (s *session) startOneByOne(w *watch) {
	if !w.blank {
		return
	}
	w.blank = false
	s.inheritAll(w)
	set := s.snapshot.ByType(w.typeURL)
	for _, name := range w.names.sorted {
		w.hold(name, nil, set[name], true)
	}
	if w.wildcard {
		for name, now := range set {
			w.note(name, nil, now, false)
		}
	}
}

// restores reports whether a difference is due because the client refused the resource.
func (w *watch) restores(name string, d difference) bool {
	return w.oneByOne() && d.forced && w.refused[name] != nil
}

// due yields the differences of a type, those first that restore what a refusal changed.
func (s *session) due(w *watch) iter.Seq2[string, difference] {
	if !w.oneByOne() {
		return maps.All(w.differs)
	}
	return func(yield func(string, difference) bool) {
		for _, first := range [...]bool{true, false} {
			for name, d := range w.differs {
				if w.restores(name, d) == first && !yield(name, d) {
					return
				}
			}
		}
	}
}

// accept notifies the feed that the client accepted a response, unless what it accepted is old.
func (s *session) accept(r *response) {
	if !r.restores {
		s.feed.Accept(s.client, r.sequence, r.resources)
	}
}

// handleRestoring processes the refusal of a response, and reports whether it does not count: it is
// that of an accepted version of an extension, or of listeners that wait for one.
func (s *session) handleRestoring(w *watch, r *response) bool {
	switch {
	case w.typeURL == resource.ListenerType && s.restoring():
		s.revert(w, r) // they are sent again
	case r.restores:
		s.forget(w, r)
	default:
		return false
	}
	return true
}

// forget records that the client refused the accepted version, too, which a response contains.
func (s *session) forget(w *watch, r *response) {
	for _, one := range r.resources {
		if was := w.refused[one.Name]; was != nil {
			was.instead = nil
			w.hold(one.Name, nil, s.get(w, one.Name), true)
		}
	}
}

// restoring reports whether the client may refuse listeners because of an extension that it
// refused: the accepted version of that is due, or unanswered.
func (s *session) restoring() bool {
	w := s.watches[resource.ExtensionType]
	if w == nil {
		return false
	}
	for name, d := range w.differs {
		if w.restores(name, d) {
			return true
		}
	}
	return w.inflight != nil && w.inflight.restores
}
