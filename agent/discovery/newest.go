package discovery

import (
	"maps"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Accepted records that a proxy has accepted resources on a stream; later streams have higher
// numbers. Problems are only reported for the newest view of a proxy, because an older epoch that
// drains may have another kind.
func (s *Server) Accepted(stream uint64, node *corev3.Node) {
	// works without the lock, because it is called for each response
	if stream <= s.newestStream.Load() {
		return
	}
	v, err := s.viewOf(node)
	if err != nil {
		return // the stream was recorded before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream <= s.newestStream.Load() {
		return
	}
	s.newestStream.Store(stream)
	proxy := proxyName(node)
	if v.proxy == "" {
		v.proxy = proxy
	}
	v.shared = v.shared || v.proxy != proxy
	v.stream = stream
	s.reportProblems()
}

// Ended records that a stream has ended. If no later stream of its proxy has accepted resources,
// the proxy's newest view is unknown: a new epoch may have failed, and the one before it serves.
// The problems of all its views are then reported until it accepts resources again.
func (s *Server) Ended(stream uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	proxy, newest := "", uint64(0)
	for _, v := range s.views {
		if v.stream == stream {
			proxy = v.proxy
		}
	}
	if proxy == "" {
		return
	}
	for _, v := range s.views {
		if v.proxy == proxy {
			newest = max(newest, v.stream)
		}
	}
	if stream != newest {
		return
	}
	for _, v := range s.views {
		if v.proxy == proxy {
			v.stream = 0
		}
	}
	s.reportProblems()
}

// dropOutdated deletes views of a single proxy from the map if the proxy has since accepted
// resources of a newer view. Without calls of Accepted, as in a server for a fleet, no view is
// outdated.
func dropOutdated(views map[string]*served) {
	newest := map[string]uint64{} // newest stream by proxy
	for _, v := range views {
		newest[v.proxy] = max(newest[v.proxy], v.stream)
	}
	maps.DeleteFunc(views, func(_ string, v *served) bool {
		return !v.shared && v.stream < newest[v.proxy]
	})
}
