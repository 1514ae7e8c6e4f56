package relay

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// impatient is called when the time for the upstream server's response is over. If the server has
// not responded, the session is served from the cache from then on.
func (s *session) impatient() error {
	if s.opened && s.responded() {
		return nil
	}
	s.offline = true
	if cache := s.cache(); cache != nil && s.node != nil {
		cache.reportExpired(identityOf(s.node, s.upstream.name()))
	}
	if s.opened {
		s.drop(fmt.Errorf("the upstream server %s does not respond", s.targets.current().address))
	}
	err := s.targets.problem()
	if err == nil {
		err = errConnecting
	}
	s.server.report(s, state{err: err, cached: s.savedAt()})
	for _, w := range s.order {
		if err := s.serve(w); err != nil {
			return err
		}
	}
	return s.subscribe()
}

// responded reports whether the upstream server has responded on the current stream, or nothing was
// requested from it.
func (s *session) responded() bool {
	for _, w := range s.order {
		if w.answered {
			return true
		}
	}
	return len(s.order) == 0
}

// served reports whether Envoy has received a response on its current stream.
func (s *session) served() bool {
	return slices.ContainsFunc(s.order, func(w *watch) bool { return w.served })
}

// known returns the cached resources of a type for the session's node, and the version of the
// resources.
func (s *session) known(typeURL string) (map[string]resource, string) {
	cache := s.cache()
	if cache == nil {
		return nil, ""
	}
	return cache.get(
		identityOf(s.node, s.upstream.name()), typeURL)
}

// savedAt returns when the resources that the session serves from the cache were accepted; zero if
// it does not serve from the cache.
func (s *session) savedAt() time.Time {
	cache := s.cache()
	if !s.offline || s.node == nil || cache == nil {
		return time.Time{}
	}
	return cache.savedAt(
		identityOf(s.node, s.upstream.name()))
}

// serve sends Envoy the cached resources of a type, without those that Envoy already has.
func (s *session) serve(w *watch) error {
	known, version := s.known(w.typeURL)
	if known == nil {
		return nil
	}
	r := w.fromCache(known, version)
	if r == nil {
		return nil
	}
	return s.sendOwn(w, r)
}

// sendOwn sends Envoy a response that the relay itself has made. The upstream server does not
// receive Envoy's answer to it.
func (s *session) sendOwn(w *watch, r *response) error {
	s.cached++
	r.nonce = "outrider-cache-" + strconv.Itoa(s.cached)
	message := r.encode(s.delta)
	if err := s.stream.SendMsg(&message); err != nil {
		return err
	}
	w.sent(r, len(message), nil)
	s.countPending(w)
	return nil
}
