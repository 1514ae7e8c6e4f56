package discovery

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/view"
)

// realm is the mesh configuration with one default namespace.
type realm struct {
	namespace string
	store     *store.Store // owned by Run
	cache     *view.Cache

	// Guarded by the server's mu.
	loaded  bool
	world   *model.World
	stored  []Problem        // of the store
	held    []*object.Object // last good versions that the store serves
	objects map[object.Kind]int
	refs    references

	refused map[object.Key]lastgood.Refused // by Envoy; the previous version is in force
	// waiting has refused versions of the previous run whose objects are not read yet.
	waiting map[object.Key]lastgood.Refused

	// restricted is set while the files have an unsupported access policy; see admit.
	restricted bool
	// good is the last good state, until a restricted realm is filled; nil: unknown.
	good     []*object.Object
	withheld map[object.Key]object.Change // changes of the files that are not in force
	// closed is set in a restricted realm without a known good state: nothing is served.
	closed bool
}

func newRealm(namespace string, world *model.World, cache *view.Cache) *realm {
	return &realm{namespace: namespace, world: world, cache: cache,
		objects: map[object.Kind]int{}, refs: references{},
		refused: map[object.Key]lastgood.Refused{}}
}

// isOwn reports whether a namespace is that of the agent's proxies. While a reload changes it,
// proxies of the previous and the next one get the resources of the current one. Callers hold mu.
func (s *Server) isOwn(namespace string) bool {
	return s.options.Namespaces != nil &&
		(namespace == s.here.namespace || slices.Contains(s.options.Namespaces(), namespace))
}

// move moves all objects that name no namespace, and the agent's proxies, into the namespace of the
// settings. Only Run may call it.
func (s *Server) move() {
	namespace, from := s.current().Namespace, s.here
	if namespace == from.namespace {
		return
	}
	moved, changes := from.store.In(namespace)
	changes = append(changes, moved.Load()...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.here = newRealm(namespace, from.world, from.cache)
	s.here.store = moved
	s.here.inherit(from)
	var gone []object.Change
	for _, o := range from.inForce() {
		gone = append(gone, object.Change{Old: o})
	}
	touched := from.world.Apply(gone)
	s.here.load(changes)
	everything := from.world.Everything()
	maps.Copy(everything.Hosts, touched.Hosts)
	maps.Copy(everything.Bindings, touched.Bindings)
	from.cache.Drop(everything)
	s.recent = nil // a refusal of the result is of no single change
	for _, v := range s.views {
		if v.own {
			v.Move(namespace)
		}
		s.update(v, everything)
	}
	s.dropCertificates()
	s.reportProblems()
}
