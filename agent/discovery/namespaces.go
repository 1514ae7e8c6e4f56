package discovery

import (
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/view"
)

// An object without metadata.namespace is in Settings.Namespace. While [node] namespace changes,
// the epochs before and after the change are in two namespaces, both in Options.Namespaces. For a
// proxy in the other one, such objects are in the proxy's namespace: its view has a world of its
// own, which is rebuilt after each change of the files.

// ownDefault returns the namespace in which a proxy has the objects that name none, "" for that of
// the settings. Callers of this and the next functions hold mu.
func (s *Server) ownDefault(namespace string) string {
	if namespace == s.settings.Namespace ||
		s.options.Namespaces != nil && slices.Contains(s.options.Namespaces(), namespace) {
		return namespace
	}
	return ""
}

// isCurrent reports whether a view is of the world of the configuration.
func (s *Server) isCurrent(v *served) bool {
	return v.namespace == "" || v.namespace == s.config.namespace
}

func (s *Server) newWorld() *model.World {
	world := model.NewWorld(s.options.Domain, s.effectiveMesh())
	world.SetKeySets(s.keySets.Keys)
	return world
}

// updateOthers moves the views that are not current to new worlds. Only Run may call it.
func (s *Server) updateOthers() {
	if s.outdated = !s.config.loaded; s.outdated {
		return
	}
	if s.outdated = s.config.closed != nil; s.outdated {
		for _, v := range s.views {
			if !s.isCurrent(v) {
				s.update(v, model.Touched{})
			}
		}
		return
	}
	worlds := map[string]*model.World{}
	for _, v := range s.views {
		if s.isCurrent(v) {
			continue
		}
		if worlds[v.namespace] == nil {
			worlds[v.namespace] = s.newWorld()
			worlds[v.namespace].Apply(additions(s.config.store.Objects(v.namespace)))
		}
		s.update(v, v.Move(worlds[v.namespace], view.NewCache()))
	}
}

// updateViews updates all views after a change of the configuration. Only Run may call it.
func (s *Server) updateViews(touched model.Touched) {
	for _, v := range s.views {
		if s.isCurrent(v) {
			s.update(v, touched)
		}
	}
	s.updateOthers()
}

// additions returns the changes that add objects.
func additions(objects []*object.Object) []object.Change {
	changes := make([]object.Change, 0, len(objects))
	for _, o := range objects {
		changes = append(changes, object.Change{New: o})
	}
	return changes
}

// applyNamespaces moves the objects to the namespace of the settings if that has changed, and
// updates the views that are not current if they are outdated. Only Run may call it, without mu.
func (s *Server) applyNamespaces() {
	c := s.config
	s.mu.Lock()
	namespace := s.settings.Namespace
	if s.outdated {
		s.updateOthers()
	}
	s.mu.Unlock()
	if namespace == c.namespace {
		return
	}
	c.store.SetNamespace(namespace)
	c.store.Load() // the texts of problems have the namespace
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objectsChanged()
	c.namespace = namespace
	c.recordStore()
	c.reset(s.newWorld())
	c.apply(additions(c.store.Objects(namespace)))
	if s.close(model.Touched{}) {
		s.reopen()
	}
	for _, v := range s.views {
		if s.isCurrent(v) && c.closed == nil {
			v.Update(v.Move(c.world, c.cache))
		}
	}
	s.updateOthers()
	s.reportProblems()
}
