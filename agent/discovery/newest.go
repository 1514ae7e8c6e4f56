package discovery

import (
	"maps"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// RecordAck records that a proxy accepted resources on a stream. Later streams have higher
// numbers. The server reports only problems of the view that a proxy's newest stream uses, because
// an older epoch, which is draining, may use another view.
func (s *Server) RecordAck(stream uint64, node *corev3.Node) {
	// fast path without the lock, because this is called for each response
	if stream <= s.newestStream.Load() {
		return
	}
	v, err := s.viewOf(node)
	if err != nil {
		// nothing is to be recorded: when the proxy accepted its first resources of this stream,
		// the view existed and the stream was recorded
		return
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

// RecordStreamEnd records the end of a stream. If it was the newest stream of its proxy, the view
// in use is unknown: a new epoch may have failed while the old one continues to serve. The server
// then reports the problems of all views of the proxy, until the proxy accepts resources again.
func (s *Server) RecordStreamEnd(stream uint64) {
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

// dropOutdated removes the views that only one proxy has used, if that proxy has accepted resources
// of a newer view. A server for a fleet does not call RecordAck, so it removes none.
func dropOutdated(views map[string]*served) {
	newest := map[string]uint64{} // newest stream by proxy
	for _, v := range views {
		newest[v.proxy] = max(newest[v.proxy], v.stream)
	}
	maps.DeleteFunc(views, func(_ string, v *served) bool {
		return !v.shared && v.stream < newest[v.proxy]
	})
}
