package relay

// istiod registers an Envoy when a stream of the Envoy opens. It unregisters the Envoy when a
// stream ends that is the Envoy's last one, but only if no other stream was opened after it. So the
// session whose stream was opened last must end last.

// connected records that a session has opened its stream last of all sessions.
func (s *Server) connected(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = session
}

// EndAllButLatestStream ends the upstream streams of all sessions except the session that opened
// its stream last. It is called before Envoys end, because they end in any order.
func (s *Server) EndAllButLatestStream() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
	s.notifyOthers()
}

// left makes the other sessions reconnect if the session that opened its stream last has ended,
// because istiod then has unregistered the Envoy. The caller must hold mu.
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
		default: // the session has an unread notification already
		}
	}
}

// renew reconnects, which makes this session the one that opened its stream last. After
// EndAllButLatestStream, which ends all older streams, renew only disconnects.
func (s *session) renew() {
	if s.node.GetMetadata().GetFields()["AUTO_REGISTER_GROUP"].GetStringValue() == "" ||
		len(s.upstream.Addresses) == 0 {
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
