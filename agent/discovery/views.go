package discovery

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
)

const (
	idleAfter       = 10 * time.Minute // a proxy that restarts, or loses its connection, finds its view as it was
	defaultMaxViews = 4096
)

// served is the view of one kind of proxy.
type served struct {
	*view.View
	namespace string    // of its proxies
	asked     time.Time // for its feed, last
}

// viewFor returns the view of a proxy's kind, and makes it if there is none. Callers hold mu.
func (s *Server) viewFor(n model.Node) (*view.View, error) {
	key, now := nodeKey(n), time.Now()
	if v := s.views[key]; v != nil {
		v.asked = now
		return v.View, nil
	}
	dropped := s.dropIdle(now)
	if len(s.views) >= s.options.MaxViews {
		return nil, fmt.Errorf("proxies of %d kinds are served and no more are allowed: too many differ in labels, metadata or locality", len(s.views))
	}
	v, err := view.New(s.world, n, s.cache, s.certificates.look)
	if err != nil {
		return nil, err
	}
	s.restoreStandIns(key, v.Feed())
	s.views[key] = &served{View: v, namespace: n.Namespace, asked: now}
	if s.loaded {
		v.Update(s.world.Everything())
		s.borrowStandIns(s.views[key])
		s.rememberSoon() // what was restored may not fit any more
	}
	if s.loaded || dropped {
		s.tellProblems()
	}
	return v, nil
}

// newest are the views, the one that was asked for last first. Callers hold mu.
func (s *Server) newest() []*served {
	return slices.SortedFunc(maps.Values(s.views), func(x, y *served) int { return y.asked.Compare(x.asked) })
}

// dropIdle forgets the views that no proxy followed or asked for since idleAfter, and tells whether there were any. The
// one that was asked for last stays: while a machine's only proxy is down, what is wrong for it goes on being told.
func (s *Server) dropIdle(now time.Time) bool {
	var last time.Time
	for _, v := range s.views {
		if v.asked.After(last) {
			last = v.asked
		}
	}
	dropped := false
	for key, v := range s.views {
		idle := v.Feed().Idle()
		if !idle.IsZero() && now.Sub(idle) > idleAfter && now.Sub(v.asked) > idleAfter && v.asked.Before(last) {
			delete(s.views, key)
			dropped = true
		}
	}
	if dropped {
		s.cache.Clear() // of what was shared by them alone
		s.watchCertificates()
	}
	return dropped
}
