package discovery

import (
	"fmt"
	"time"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
)

const (
	// idleAfter is how long a view is retained for a proxy that restarts or reconnects.
	idleAfter       = 10 * time.Minute
	defaultMaxViews = 4096
)

// served is the view of one kind of proxy.
type served struct {
	*view.View
	own       bool      // its proxies are the agent's, which move with the settings
	requested time.Time // last request for its feed

	publications []publication // the newest last
}

// viewFor returns the view of a proxy's kind, and creates it if there is none. A node without a
// namespace is one of the agent's. It returns an error if MaxViews is reached. Callers hold mu.
func (s *Server) viewFor(n model.Node) (*served, error) {
	key, own, now := nodeKey(n), n.Namespace == "", time.Now()
	if v := s.views[key]; v != nil {
		v.requested = now
		return v, nil
	}
	dropped := s.dropIdle(now)
	if len(s.views) >= s.options.MaxViews {
		return nil,
			fmt.Errorf("proxies of %d kinds are served and no more are allowed: too many differ "+
				"in labels, metadata or locality", len(s.views))
	}
	if own {
		n.Namespace = s.here.namespace
	}
	made, err := view.New(s.here.world, n, s.here.cache, s.certificates.look)
	if err != nil {
		return nil, err
	}
	v := &served{View: made, own: own, requested: now}
	s.views[key] = v
	if s.here.loaded {
		s.update(v, s.here.world.Everything())
	}
	if s.here.loaded || dropped {
		s.reportProblems()
	}
	return v, nil
}

// dropIdle deletes views that no proxy used for idleAfter, and reports whether there were any. The
// view requested last stays, so that its problems are reported while the only proxy is down.
func (s *Server) dropIdle(now time.Time) bool {
	var last time.Time
	for _, v := range s.views {
		if v.requested.After(last) {
			last = v.requested
		}
	}
	dropped := false
	for key, v := range s.views {
		idle := v.Feed().Idle()
		if !idle.IsZero() && now.Sub(idle) > idleAfter && now.Sub(v.requested) > idleAfter &&
			v.requested.Before(last) {
			delete(s.views, key)
			dropped = true
		}
	}
	if dropped {
		s.here.cache.Clear() // frees resources that only dropped views used
		s.dropCertificates()
	}
	return dropped
}
