package discovery

import (
	"fmt"
	"time"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
)

const (
	// idleAfter is how long a view without a proxy is retained, for a proxy that restarts or
	// reconnects.
	idleAfter = 10 * time.Minute
	// used instead of idleAfter for views that all proxies have left, and once a limit of views is
	// reached
	evictAfter      = 30 * time.Second
	defaultMaxViews = 4096
)

// served is the view of one kind of proxy, with the proxies that use it.
type served struct {
	*view.ProxyView
	namespace string    // namespace of objects that name none; see ownDefault
	requested time.Time // time of the last request for its feed
	// first proxy that accepted resources of the view, see proxyName; "": none yet
	proxy string
	// number of the newest stream on which a proxy accepted resources of the view
	stream  uint64
	shared  bool // more than one proxy has accepted resources of the view
	kind    kind
	created time.Time
	owner   string // identity against whose limit the view counts; see MaxViewsPerIdentity
	// number of proxies that use the view through FleetServer.Subscribe
	subscriptions int
	// all proxies have moved to other views; the view is deleted after evictAfter
	left bool
}

// kind identifies a view. Views that differ only in Envoy's version have equal resources, but one
// version may refuse a resource that another accepts.
type kind struct {
	Node    string `json:"node"`    // key of the node; see nodeKey
	Version string `json:"version"` // version of Envoy
	Proxy   string `json:"proxy"`   // name of the first proxy; see proxyName
}

// key returns a key that is equal for proxies of one view.
func (k kind) key() string { return k.Node + "\n" + k.Version }

// sharing is implemented by FleetServer. Its methods are called with mu held.
type sharing interface {
	// ownPorts returns what replaces the addresses of a captured proxy in its view: the service
	// ports that its host serves. If its Sidecar has ingress listeners, which may need an address,
	// it returns the host's first address instead, and own is nil.
	ownPorts(n model.Node) (addresses []string, own *view.ServedPorts)
	// move notifies the proxies that have another view after a change.
	move(touched model.ChangeSummary)
	// problems returns the problems of the ports that the hosts of connected proxies serve.
	problems() []Problem
}

// none implements sharing for a server without FleetServer: captured proxies share a view if their
// addresses are equal.
type none struct{}

func (none) ownPorts(n model.Node) ([]string, *view.ServedPorts) { return n.Addresses, nil }
func (none) move(model.ChangeSummary)                            {}
func (none) problems() []Problem                                 { return nil }

// class holds the properties that determine a proxy's view.
type class struct {
	kind
	node model.Node        // node of the view; proxies of the class may differ in its addresses
	own  *view.ServedPorts // ports that the hosts serve; nil: the ports at the addresses of node
}

// classify returns the class of a proxy. Callers of classify and viewFor hold mu.
func (s *Server) classify(n model.Node, proxy string) class {
	c := class{node: n}
	switch {
	case s.options.SeparateViewsByAddress:
	case n.IsIntercepted():
		c.node.Addresses, c.own = s.sharing.ownPorts(n)
	default:
		c.node.Addresses = nil
	}
	c.kind = kind{Node: nodeKey(c.node), Version: n.EnvoyVersion, Proxy: proxy}
	if c.own != nil {
		c.Node += "\nports\n" + c.own.EquivalenceKey
	}
	if s.ownDefault(n.Namespace) != n.Namespace {
		// Objects without a namespace are in the namespace of the settings, not in that of the
		// proxy. The suffix gives such proxies a view of their own.
		c.Node += "\n"
	}
	return c
}

// viewFor returns the view of a class, and creates it if there is none. It returns an error if
// there are MaxViews.
func (s *Server) viewFor(of class) (*served, error) {
	c, namespace, now := s.config, s.ownDefault(of.node.Namespace), time.Now()
	if v := s.views[of.key()]; v != nil {
		v.requested, v.left = now, false
		return v, nil
	}
	dropped := s.dropIdle(now)
	if len(s.views) >= s.options.MaxViews && s.evict(now, "") {
		dropped = true
	}
	if len(s.views) >= s.options.MaxViews {
		return nil, tooManyKinds(len(s.views), "")
	}
	of.node.WantsNameTable = s.options.ServeNameTables && of.node.Metadata["DNS_CAPTURE"] == "true"
	made, err := view.New(c.world, of.node, c.cache, s.certificates.look)
	if err != nil {
		return nil, err
	}
	if of.own != nil {
		made.SetServedPorts(*of.own)
	}
	v := &served{ProxyView: made, namespace: namespace, requested: now, kind: of.kind, created: now}
	made.Feed().OnRefusal(func() {
		select {
		case s.nacked <- struct{}{}:
		default: // the channel has a signal already
		}
	})
	s.inheritRefusals(v)
	s.views[of.key()] = v
	s.requireModules()
	switch {
	case !s.isCurrent(v):
		s.outdated = true
		s.wakeRun()
	case c.loaded:
		s.update(v, c.world.EverythingChanged())
	}
	if c.loaded || dropped {
		s.reportProblems()
	}
	return v, nil
}

func tooManyKinds(kinds int, of string) error {
	return fmt.Errorf("the limit of %d kinds of proxies%s is reached: too many proxies differ in "+
		"labels, "+
		"metadata or locality", kinds, of)
}

// evict deletes the least recently requested view, of an owner ("": any), that has had no proxy for
// evictAfter. It reports whether there was one.
func (s *Server) evict(now time.Time, owner string) bool {
	oldest := ""
	for key, v := range s.views {
		if (owner == "" || v.owner == owner) && v.unusedFor(now) > evictAfter &&
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

// dropIdle deletes views that all proxies have left, or that none has used for idleAfter. It
// reports whether there were any. The view requested last is retained, so that its problems are
// reported while its only proxy is down.
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
		unused := v.unusedFor(now)
		if unused > idleAfter && v.requested.Before(last) || unused > evictAfter && v.left {
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
