package discovery

import (
	"fmt"
	"time"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
)

const (
	// idleAfter is how long a view without a proxy is retained, in case that the proxy restarts or
	// reconnects.
	idleAfter       = 10 * time.Minute
	evictAfter      = 30 * time.Second // idleAfter if there are MaxViews
	defaultMaxViews = 4096
)

// served is the view of one kind of proxy, with the proxies that use it.
type served struct {
	*view.View
	namespace string    // namespace of objects that name none; see ownDefault
	requested time.Time // time of the last request for its feed
	// first proxy that accepted resources of the view, see proxyName; "": none yet
	proxy   string
	stream  uint64 // newest stream that accepted resources of the view
	shared  bool   // more than one proxy has accepted resources of the view
	kind    kind
	created time.Time
}

// kind identifies the proxies of a view. Views that differ only in the version of Envoy have equal
// resources, but one version may refuse what another accepts.
type kind struct {
	Node    string `json:"node"`    // key of the node; see nodeKey
	Version string `json:"version"` // version of Envoy
	Proxy   string `json:"proxy"`   // name of the first proxy; see proxyName
}

// viewFor returns the view for a proxy's kind, and creates it if necessary. It returns an error if
// there are MaxViews. Callers hold mu.
func (s *Server) viewFor(n model.Node, proxy string) (*served, error) {
	c, namespace, now := s.config, s.ownDefault(n.Namespace), time.Now()
	of := kind{Node: nodeKey(n), Version: n.EnvoyVersion, Proxy: proxy}
	if namespace != n.Namespace {
		of.Node += "\n" // distinguishes these proxies from those whose own namespace is the default
	}
	key := of.Node + "\n" + of.Version
	if v := s.views[key]; v != nil {
		v.requested = now
		return v, nil
	}
	dropped := s.dropIdle(now)
	if len(s.views) >= s.options.MaxViews && s.evict(now) {
		dropped = true
	}
	if len(s.views) >= s.options.MaxViews {
		return nil,
			fmt.Errorf("proxies of %d kinds are served and no more are allowed: too many differ "+
				"in labels, metadata or locality", len(s.views))
	}
	n.NameTable = s.options.NameTables && n.Metadata["DNS_CAPTURE"] == "true"
	made, err := view.New(c.world, n, c.cache, s.certificates.look)
	if err != nil {
		return nil, err
	}
	v := &served{View: made, namespace: namespace, requested: now, kind: of, created: now}
	made.Feed().OnRefusal(func() {
		select {
		case s.nacked <- struct{}{}:
		default: // the channel has a signal already
		}
	})
	s.inheritRefusals(v)
	s.views[key] = v
	switch {
	case !s.isCurrent(v):
		s.outdated = true
		s.wakeRun()
	case c.loaded:
		s.update(v, c.world.Everything())
	}
	if c.loaded || dropped {
		s.reportProblems()
	}
	return v, nil
}

// evict deletes the view that was requested first among those without a proxy for evictAfter. It
// reports whether there was one.
func (s *Server) evict(now time.Time) bool {
	oldest := ""
	for key, v := range s.views {
		if v.unusedFor(now) > evictAfter &&
			(oldest == "" || v.requested.Before(s.views[oldest].requested)) {
			oldest = key
		}
	}
	if oldest == "" {
		return false
	}
	s.retainRefusals(s.views[oldest])
	delete(s.views, oldest)
	s.freeDropped()
	return true
}

// unusedFor returns how long no proxy has watched or requested the view's feed.
func (v *served) unusedFor(now time.Time) time.Duration {
	idle := v.Feed().IdleSince()
	if idle.IsZero() {
		return 0
	}
	return min(now.Sub(idle), now.Sub(v.requested))
}

// dropIdle deletes views that no proxy has used for idleAfter, and reports whether there were any.
// The view requested last is retained, so that its problems are reported while the only proxy is
// down.
func (s *Server) dropIdle(now time.Time) bool {
	var last time.Time
	for _, v := range s.views {
		if v.requested.After(last) {
			last = v.requested
		}
	}
	s.forgetRefusals(now)
	dropped := false
	for key, v := range s.views {
		if v.unusedFor(now) > idleAfter && v.requested.Before(last) {
			s.retainRefusals(v)
			delete(s.views, key)
			dropped = true
		}
	}
	if dropped {
		s.freeDropped()
	}
	return dropped
}

// freeDropped frees resources that only dropped views used.
func (s *Server) freeDropped() {
	s.config.cache.Clear()
	s.dropCertificates()
}
