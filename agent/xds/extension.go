package xds

import (
	"iter"
	"maps"

	"outrider.org/outrider/agent/resource"
)

// Envoy remembers the last configuration of an extension that it received, even if it refused it.
// It then refuses listeners that name the extension until it receives a different configuration;
// if it receives the refused one again, it accepts that without effect. Therefore each response
// contains one configuration, so that it is clear which one was refused. After the refusal, the
// accepted version is sent again. If there is none, a removal is sent, after which the default
// configuration in the listener applies. Listeners wait until Envoy has acknowledged this. An
// accepted configuration of which only the version is known, from an earlier stream, cannot be sent
// again.

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

// handleRestoring processes the client's refusal of a response that restores the accepted version
// of an extension, or that has listeners while an extension is being restored, and returns true.
// Such a refusal concerns no new resources. For other responses it returns false.
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
