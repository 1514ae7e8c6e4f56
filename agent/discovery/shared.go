package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

// FleetServer serves a fleet from a Server: captured proxies that differ only in their addresses
// share a view if their hosts serve the same ports of services. A change of those ports moves a
// connected proxy to another view. Its methods are safe for concurrent use.
type FleetServer struct {
	*Server

	// Guarded by the server's mu.
	subscriptions map[*subscription]struct{} // subscriptions of captured proxies
	index         *addressIndex              // nil until the first captured proxy subscribes
	indexed       *model.Mesh                // Mesh from which index was built
}

// NewFleetServer returns the FleetServer of a server without Options.SeparateViewsByAddress. It
// must be called before the server is used.
func NewFleetServer(s *Server) *FleetServer {
	shared := &FleetServer{Server: s, subscriptions: map[*subscription]struct{}{}}
	s.sharing = shared
	return shared
}

// subscription is the subscription of a connected proxy to the feed of its view.
type subscription struct {
	node  model.Node // node of the proxy, with the addresses of its host
	name  string     // name of the proxy; see proxyName
	owner string     // identity of the proxy's client, or "none"
	moved func()     // called when the feed may differ from the previous one

	view *served // current view; nil: none yet
	// ports that the host serves; nil: the view depends on the host's first address instead
	own *view.ServedPorts
}

// Subscribe returns a function that returns the current feed of a connected proxy, as Feed does,
// and a function that ends the subscription. moved is called when the feed may have changed; it
// must neither block nor call the server. identity is the identity of the proxy's client (see
// Options.MaxViewsPerIdentity).
func (s *FleetServer) Subscribe(node *corev3.Node, identity string, moved func()) (
	feed func() (*resource.Feed, error), end func()) {
	if RequestsIstioObjects(node) {
		return s.objectsFeed, func() {}
	}
	sub := &subscription{name: proxyName(node), owner: cmp.Or(identity, "none"), moved: moved}
	return func() (*resource.Feed, error) { return s.feedFor(sub, node) }, func() { s.end(sub) }
}

// feedFor returns the feed of a subscription, and registers the subscription at its first call.
func (s *FleetServer) feedFor(sub *subscription, node *corev3.Node) (*resource.Feed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := sub.view == nil
	if !first && s.config.closed != nil {
		// while nothing is served, a new view would be empty, so the proxy stays with its view
		return sub.view.Feed(), nil
	}
	if first {
		var err error
		if sub.node, err = parseNode(node, s.settings.Namespace); err != nil {
			return nil, err
		}
	}
	of := s.classify(sub.node, sub.name)
	v, err := s.viewOwnedBy(sub.owner, of)
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", node.GetId(), err)
	}
	if sub.view != v {
		v.subscriptions++
		if !first {
			sub.view.subscriptions--
			sub.view.left = sub.view.subscriptions == 0
			defer s.reportProblems()
		}
	}
	sub.view, sub.own = v, of.own
	if first && sub.node.IsIntercepted() {
		s.subscriptions[sub] = struct{}{}
	}
	if sub.own != nil && slices.ContainsFunc(sub.own.Problems, func(p Problem) bool {
		return !slices.Contains(s.Server.problems, p)
	}) {
		s.reportProblems()
	}
	return v.Feed(), nil
}

// viewOwnedBy returns the view of a class of proxies. If there is none, it creates one, which
// counts against owner's limit of views. Callers hold mu.
func (s *FleetServer) viewOwnedBy(owner string, of class) (*served, error) {
	known := s.views[of.key()] != nil
	if !known {
		own := 0
		for _, v := range s.views {
			if v.owner == owner {
				own++
			}
		}
		if own >= s.options.MaxViewsPerIdentity && !s.evict(time.Now(), owner) {
			return nil, tooManyKinds(own, " of the identity "+owner)
		}
	}
	v, err := s.viewFor(of)
	if err == nil && !known {
		v.owner = owner
	}
	return v, err
}

// end ends a subscription.
func (s *FleetServer) end(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.view != nil {
		sub.view.subscriptions--
	}
	delete(s.subscriptions, sub)
}

// ownPorts implements sharing.
func (s *FleetServer) ownPorts(n model.Node) (addresses []string, own *view.ServedPorts) {
	w := s.config.world
	scope := w.SidecarScope(n)
	if len(scope.Spec.GetIngress()) > 0 {
		return n.Addresses[:min(1, len(n.Addresses))], nil
	}
	if s.indexed != w {
		s.index, s.indexed = newAddressIndex(w), w
	}
	found := view.SelectServedPorts(w, n, scope, s.index.of(n.Addresses))
	return nil, &found
}

// move implements sharing.
func (s *FleetServer) move(touched model.ChangeSummary) {
	var changed map[string]struct{}
	if s.indexed == s.config.world {
		changed = s.index.update(s.indexed, touched.ChangedHosts)
	}
	if s.config.closed != nil {
		return // reopen calls move again, once resources are served
	}
	all := touched.SidecarsChanged || touched.TelemetriesChanged
	if !all && len(changed) == 0 {
		return
	}
	for sub := range s.subscriptions {
		if all || slices.ContainsFunc(sub.node.Addresses, func(address string) bool {
			_, ok := changed[address]
			return ok
		}) {
			s.moveOne(sub)
		}
	}
}

func (s *FleetServer) moveOne(sub *subscription) {
	now := s.classify(sub.node, sub.name)
	if now.key() != sub.view.kind.key() {
		sub.moved()
		return
	}
	if now.own == nil {
		return
	}
	served := sub.view.ServedPorts()
	if served.SameObjects(*sub.own) && !served.SameObjects(*now.own) {
		// the ports are the same, but their objects are newer versions
		sub.view.SetServedPorts(*now.own)
		s.update(sub.view, model.ChangeSummary{})
	}
	sub.own = now.own
}

// problems implements sharing.
func (s *FleetServer) problems() []Problem {
	var all []Problem
	known := map[Problem]bool{}
	for sub := range s.subscriptions {
		if sub.own == nil {
			continue
		}
		for _, p := range sub.own.Problems {
			if !known[p] {
				known[p] = true
				all = append(all, p)
			}
		}
	}
	return all
}
