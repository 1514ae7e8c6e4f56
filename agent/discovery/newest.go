package discovery

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Accepted records that a proxy has accepted resources on a stream; later streams have higher
// numbers. Gateways without effect are reported for the newest proxy, as an older epoch that drains
// may have been another kind of proxy.
func (s *Server) Accepted(stream uint64, node *corev3.Node) {
	if stream <= s.newestStream.Load() { // without the lock, as this runs for each response
		return
	}
	v, err := s.viewOf(node)
	if err != nil {
		return // the stream has reported it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream > s.newestStream.Load() {
		s.newestStream.Store(stream)
		s.newestView = v
		s.reportProblems()
	}
}

// gatewayViews returns those of the views for which Gateways without effect are reported: the
// newest proxy's, or all if nobody calls Accepted, as in a fleet's server.
func (s *Server) gatewayViews(views map[string]*served) map[string]*served {
	for key, v := range views {
		if v == s.newestView {
			return map[string]*served{key: v}
		}
	}
	return views
}
