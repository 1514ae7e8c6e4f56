package xds

import (
	"iter"
	"maps"

	"outrider.org/outrider/agent/resource"
)

// Envoy stores an extension configuration as the last one of its name even if it refuses the
// configuration. Then it also refuses listeners that name the extension, until it receives a
// different configuration; the refused one, sent again, would be accepted without effect. For this
// reason each response contains one configuration, so that it is clear which one was refused. After
// the refusal, the accepted version is sent again or, without one, a removal, after which the
// default configuration in the listener applies. Listeners wait until this is acknowledged. If only
// the version number of the accepted configuration is known, from an earlier stream, it cannot be
// sent again.

// oneByOne reports whether each response contains at most one resource of the type.
func (w *watch) oneByOne() bool { return w.typeURL == resource.ExtensionType }

// startOneByOne begins to serve a type whose first resources are sent in several responses.
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

// restores reports whether a resource must be sent because the client refused it: the accepted
// version, or a removal.
func (w *watch) restores(name string, d difference) bool {
	return w.oneByOne() && d.forced && w.refused[name] != nil
}

// due yields the differences of a type that are to be sent. Those that replace a refused version
// with the accepted one, or remove it, come first.
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

// accept notifies the feed that the client accepted a response, unless the response only restored
// an accepted version.
func (s *session) accept(r *response) {
	if !r.restores {
		s.feed.Accept(s.client, r.sequence, r.resources)
	}
}

// handleRestoring processes the client's refusal of a response, and returns true, if the refusal
// says nothing about new resources: the response has the accepted version of an extension, or has
// listeners while an extension is being restored. For other responses it returns false.
func (s *session) handleRestoring(w *watch, r *response) bool {
	switch {
	case w.typeURL == resource.ListenerType && s.restoring():
		s.revert(w, r) // the listeners are sent again
	case r.restores:
		s.forget(w, r)
	default:
		return false
	}
	return true
}

// forget records that the client has also refused the accepted versions that a response contains.
func (s *session) forget(w *watch, r *response) {
	for _, one := range r.resources {
		if was := w.refused[one.Name]; was != nil {
			was.instead = nil
			w.hold(one.Name, nil, s.get(w, one.Name), true)
		}
	}
}

// restoring reports whether the client may refuse listeners because it refused an extension: the
// accepted version of the extension was not sent again yet, or was not answered.
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
