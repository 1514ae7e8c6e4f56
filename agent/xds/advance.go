package xds

import "outrider.org/outrider/agent/resource"

// advance moves to a newer snapshot.
func (s *session) advance(to *resource.Snapshot) {
	from := s.snapshot
	keys, ok := s.feed.Since(from.Sequence)
	s.snapshot = to
	if ok {
		for _, key := range keys {
			if w := s.watches[key.Type]; w != nil {
				s.changed(w, key.Name, from)
			}
		}
		return
	}
	for _, w := range s.order {
		if w.blank || from.Sequence != 0 && from.Changed(w.typeURL) == to.Changed(w.typeURL) {
			continue
		}
		for name := range from.Set(w.typeURL) {
			s.changed(w, name, from)
		}
		for name := range to.Set(w.typeURL) {
			if from.Set(w.typeURL)[name] == nil {
				s.changed(w, name, from)
			}
		}
		// held since an earlier stream, or requested before the first snapshot
		for name := range w.differs {
			s.changed(w, name, from)
		}
	}
}

func (s *session) changed(w *watch, name string, from *resource.Snapshot) {
	if w.blank || !w.wants(name) {
		return
	}
	now := s.get(w, name)
	switch r := w.refused[name]; {
	case r == nil:
	case same(r.held, now): // the refused version was withdrawn
		now.Accept() // Accept ignores nil
		delete(w.refused, name)
		s.reportCured(w, []string{name})
	case w.typeURL != resource.SecretType && same(r.resource, now):
		// it was withdrawn and published again: the publisher may have missed the refusal
		r.again = true
	}
	w.note(name, from.Set(w.typeURL)[name], now, false)
}
