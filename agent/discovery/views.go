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
	realm     *realm
	namespace string    // of its proxies
	requested time.Time // last request for its feed

	publications []publication // the newest last
}

// viewFor returns the view of a proxy's kind, and creates it if there is none. It returns an error
// if MaxViews is reached. Callers hold mu.
func (s *Server) viewFor(n model.Node) (*served, error) {
	r, key, now := s.realmOf(n.Namespace), nodeKey(n), time.Now()
	if r.namespace != n.Namespace {
		key += "\n" + r.namespace
	}
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
	made, err := view.New(r.world, n, r.cache, s.certificates.look)
	if err != nil {
		return nil, err
	}
	s.realms[r.namespace] = r // dropIdle may have deleted it
	v := &served{View: made, realm: r, namespace: n.Namespace, requested: now}
	s.views[key] = v
	if r.loaded {
		v.update(r.world.Everything())
	}
	if r.loaded || dropped {
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
		for _, r := range s.realms {
			r.cache.Clear() // frees resources that only dropped views used
		}
		s.dropRealms()
		s.dropCertificates()
	}
	return dropped
}
