package discovery

import (
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/view"
)

// realm is the mesh configuration with one default namespace. While proxies move to another
// namespace there are two realms, so that proxies in the previous one keep their resources.
type realm struct {
	namespace string
	store     *store.Store // owned by Run; nil until it is filled
	cache     *view.Cache

	// Guarded by the server's mu.
	loaded  bool
	world   *model.World
	stored  []Problem        // of the store
	held    []*object.Object // last good versions that the store serves
	objects map[object.Kind]int
	refs    references

	// restricted is set while the files have an unsupported access policy; see admit.
	restricted bool
	// good is the last good state, until a restricted realm is filled; nil: unknown.
	good     []*object.Object
	withheld map[object.Key]object.Change // changes of the files that are not in force
	// closed is set in a restricted realm without a known good state: nothing is served.
	closed bool
}

// realmOf returns the realm of proxies in a namespace, and creates that of Options.Namespaces.
// Callers of this and the next functions hold mu.
func (s *Server) realmOf(namespace string) *realm {
	if s.options.Namespaces != nil && slices.Contains(s.options.Namespaces(), namespace) {
		s.need(namespace)
	}
	if r := s.realms[namespace]; r != nil {
		return r
	}
	return s.realms[s.settings.Namespace]
}

// need creates a realm unless it exists; Run fills it.
func (s *Server) need(namespace string) {
	if s.realms[namespace] != nil {
		return
	}
	s.realms[namespace] = s.newRealm(namespace)
	select {
	case s.joining <- struct{}{}:
	default: // a signal is pending
	}
}

func (s *Server) newRealm(namespace string) *realm {
	return &realm{namespace: namespace, cache: view.NewCache(),
		world:   model.NewWorld(s.options.Domain, s.effectiveMesh()),
		objects: map[object.Kind]int{}, refs: references{}}
}

// settle makes the realm of the settings the current one, once it is filled.
func (s *Server) settle() {
	if r := s.realms[s.settings.Namespace]; r.loaded && r != s.here {
		s.here = r
		s.dropRealms()
	}
}

// dropRealms deletes realms that have no views, except those of the settings.
func (s *Server) dropRealms() {
	used := map[string]bool{s.settings.Namespace: true, s.here.namespace: true}
	for _, v := range s.views {
		used[v.realm.namespace] = true
	}
	for namespace := range s.realms {
		if !used[namespace] {
			delete(s.realms, namespace)
		}
	}
}

// filled returns the realms that have a store. Only Run may call it, without mu.
func (s *Server) filled() []*realm {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*realm
	for _, r := range s.realms {
		if r.store != nil {
			all = append(all, r)
		}
	}
	return all
}

// join fills new realms with the objects of the current one, then reads files for them. Only Run
// may call it.
func (s *Server) join() {
	s.mu.Lock()
	from := s.here
	var empty []*realm
	for _, r := range s.realms {
		if r.store == nil {
			empty = append(empty, r)
		}
	}
	s.mu.Unlock()
	for _, r := range empty {
		filled, changes := from.store.In(r.namespace)
		r.store = filled
		r.inherit(from)
		s.push(map[*realm][]object.Change{r: append(changes, r.store.Load()...)}, nil)
	}
}

// apply applies object changes to the realm's world, cache, references and counters.
func (r *realm) apply(changes []object.Change) model.Touched {
	r.count(changes)
	touched := r.world.Apply(changes)
	r.cache.Drop(touched)
	r.refs.update(r.world, touched)
	return touched
}
