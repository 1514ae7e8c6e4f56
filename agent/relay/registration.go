package relay

// connected records the session that connected last.
func (s *Server) connected(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = session
}

// renew makes the other sessions connect again if the one that connected last has ended. Of several
// istiods, the one with the latest connection owns the WorkloadEntry and now considers it
// disconnected. Callers hold mu.
func (s *Server) renew(ended *session) {
	if s.latest != ended {
		return
	}
	s.latest = nil
	for session := range s.sessions {
		select {
		case session.renewed <- struct{}{}:
		default: // already notified
		}
	}
}

// registers reports whether istiod creates a WorkloadEntry for this Envoy.
func (s *session) registers() bool {
	return s.node.GetMetadata().GetFields()["AUTO_REGISTER_GROUP"].GetStringValue() != ""
}
