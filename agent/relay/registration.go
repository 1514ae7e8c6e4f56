package relay

// istiod registers an Envoy when a stream of it opens, and considers it gone when its last stream
// ends, but only if that one was also opened last. So, of several sessions, the one that connected
// last must end last.

// connected records the session that connected last.
func (s *Server) connected(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = session
}

// Leave ends the upstream streams of all sessions but the one that connected last: the Envoys are
// about to end, in any order.
func (s *Server) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
	s.notifyOthers()
}

// left makes the other sessions connect again if the one that connected last has ended. Callers
// hold mu.
func (s *Server) left(ended *session) {
	if s.latest != ended || s.leaving {
		return
	}
	s.latest = nil
	s.notifyOthers()
}

func (s *Server) notifyOthers() {
	for session := range s.sessions {
		if session == s.latest {
			continue
		}
		select {
		case session.renewed <- struct{}{}:
		default: // already notified
		}
	}
}

// renew connects again, so that this session is the one that connected last, or leaves.
func (s *session) renew() {
	if s.node.GetMetadata().GetFields()["AUTO_REGISTER_GROUP"].GetStringValue() == "" {
		return
	}
	s.reconnect()
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if s.server.leaving {
		s.retry.Stop()
		s.patience.Stop()
	}
}
