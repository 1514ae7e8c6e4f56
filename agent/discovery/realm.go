package discovery

import (
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/view"
)

// realm is what the files mean where objects that name no namespace are in a certain one. There is
// one, and while proxies move from one namespace to another there are two: those that are still in
// the one before lose nothing.
type realm struct {
	namespace string
	store     *store.Store // owned by Run; nil: it is yet to be filled
	cache     *view.Cache

	// Guarded by the server's mu.
	loaded  bool
	world   *model.World
	stored  []Problem        // of the store
	held    []*object.Object // by the store, though their text is bad now
	objects map[object.Kind]int
	refs    references

	refused map[object.Key]lastgood.Refused // by Envoy; the version before is in force
	// from before this start, of objects that are yet to be read
	waiting map[object.Key]lastgood.Refused

	// the files restrict access in a way that is not carried out; see admit
	restricted bool
	// in force when that began before the realm was filled; nil: unknown
	good     []*object.Object
	withheld map[object.Key]store.Change // by the files, and not in force
	// restricted, and no good state is known: nothing is served
	closed bool
}

// expected is a namespace that proxies may soon be in.
type expected struct {
	id        uint64
	namespace string
}

// Expect has there, until Over, what proxies of a namespace get in which objects are that name
// none. A proxy that asks and is in no namespace that is known of gets the same. Configure makes it
// last.
func (s *Server) Expect(id uint64, namespace string) {
	if namespace == "" {
		namespace = s.options.Namespace
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpected(id)
	s.expected = append(s.expected, expected{id, namespace})
	s.need(namespace)
}

// Over ends what Expect began.
func (s *Server) Over(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpected(id)
	s.dropRealms()
}

// Keep has there what proxies of these namespaces get, and says that all others which were kept are
// not needed any more. It is for proxies that live: those of a run before this one, whose namespace
// nobody expects.
func (s *Server) Keep(namespaces []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inhabited = namespaces
	for _, namespace := range namespaces {
		s.need(namespace)
	}
	s.dropRealms()
}

func (s *Server) forgetExpected(id uint64) {
	for i, e := range s.expected {
		if e.id == id {
			s.expected = append(s.expected[:i:i], s.expected[i+1:]...)
			return
		}
	}
}

// namespace is that of proxies that name none. Callers hold mu, as of all that follow.
func (s *Server) namespace() string {
	if len(s.expected) > 0 {
		return s.expected[len(s.expected)-1].namespace
	}
	return s.settings.Namespace
}

// realmOf is that of proxies in a namespace.
func (s *Server) realmOf(namespace string) *realm {
	if r := s.realms[namespace]; r != nil {
		return r
	}
	return s.realms[s.namespace()]
}

// need makes a realm if it is not there; Run fills it.
func (s *Server) need(namespace string) {
	if s.realms[namespace] != nil {
		return
	}
	s.realms[namespace] = s.newRealm(namespace)
	select {
	case s.joining <- struct{}{}:
	default: // it is about to look
	}
}

func (s *Server) newRealm(namespace string) *realm {
	return &realm{namespace: namespace, cache: view.NewCache(),
		world:   model.NewWorld(s.options.Domain, s.effectiveMesh()),
		objects: map[object.Kind]int{}, refs: references{},
		refused: map[object.Key]lastgood.Refused{}}
}

// settle makes the realm of the settings the one that counts, once it is filled.
func (s *Server) settle() {
	if r := s.realms[s.settings.Namespace]; r.loaded && r != s.here {
		s.here = r
		s.dropRealms()
	}
}

// dropRealms forgets those that no view is left of, that nobody is in and that nobody expects.
func (s *Server) dropRealms() {
	used := map[string]bool{s.settings.Namespace: true, s.here.namespace: true}
	for _, e := range s.expected {
		used[e.namespace] = true
	}
	for _, namespace := range s.inhabited {
		used[namespace] = true
	}
	for _, v := range s.views {
		used[v.realm.namespace] = true
	}
	for namespace := range s.realms {
		if !used[namespace] {
			delete(s.realms, namespace)
		}
	}
}

// filled are the realms that have a store. Only Run may call it, and without mu.
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

// join fills the realms that are new with what the one that counts holds, and then reads for them.
// Only Run may call it.
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
		s.push(map[*realm][]store.Change{r: append(changes, r.store.Load()...)}, nil)
	}
}
