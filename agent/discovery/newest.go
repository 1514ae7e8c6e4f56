package discovery

import (
	"maps"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Accepted records that a proxy has accepted resources on a stream; later streams have higher
// numbers. Problems are reported for what a proxy is now: an older epoch that drains may have been
// another kind of proxy.
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

// Ended records that a stream has ended. If no later one of its proxy accepted anything, what the
// proxy is now is unknown: a new epoch may have died, and the one before it serves. The problems of
// all its views are reported until it accepts resources again.
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

// dropOutdated deletes from a map of views those of a single proxy that has accepted another one
// since. Nothing is outdated if nobody calls Accepted, as in a fleet's server.
func dropOutdated(views map[string]*served) {
	newest := map[string]uint64{} // by proxy
	for _, v := range views {
		newest[v.proxy] = max(newest[v.proxy], v.stream)
	}
	maps.DeleteFunc(views, func(_ string, v *served) bool {
		return !v.shared && v.stream < newest[v.proxy]
	})
}
