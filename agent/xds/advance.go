package xds

import "outrider.org/outrider/agent/resource"

// advance makes the session continue with a newer snapshot of the feed.
func (s *session) advance(to *resource.Snapshot) {
	from := s.snapshot
	keys, ok := s.feed.ChangedSince(from.Sequence)
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
		if w.blank || from.Sequence != 0 && from.LastChange(w.typeURL) == to.LastChange(w.typeURL) {
			continue
		}
		s.compare(w, from)
	}
}

// compare records which resources of a watch differ between the snapshot from and the newest
// snapshot.
func (s *session) compare(w *watch, from *resource.Snapshot) {
	before, now := from.ByType(w.typeURL), s.snapshot.ByType(w.typeURL)
	for name := range before {
		s.changed(w, name, from)
	}
	for name := range now {
		if before[name] == nil {
			s.changed(w, name, from)
		}
	}
	// A name that is in neither snapshot may differ, too: the client has the resource from an
	// earlier stream, or requested it before the first snapshot.
	for name := range w.differs {
		s.changed(w, name, from)
	}
}

func (s *session) changed(w *watch, name string, from *resource.Snapshot) {
	if w.blank || !w.wants(name) {
		return
	}
	now := s.get(w, name)
	if r := w.refused[name]; r != nil {
		feed := s.snapshot.Refusal(resource.Key{Type: w.typeURL, Name: name})
		switch {
		case r.inherited && (!same(r.resource, now) || feed == nil || feed.OfferToNewClients):
			delete(w.refused, name)
		case same(r.resource, now) && !r.inherited && w.typeURL != resource.SecretType &&
			(feed == nil || feed.Retries > r.attempt):
			// the publisher retries the refused version, or removed it and published it again
			r.again = true
		// the publisher removed the refused version
		case !same(r.resource, now) && same(r.instead, now), now == nil && w.oneByOne():
			delete(w.refused, name)
			s.reportRecovered(w, []string{name})
		}
	}
	w.note(name, from.ByType(w.typeURL)[name], now, false)
}
