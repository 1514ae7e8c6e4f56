package discovery

import (
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/view"
)

// Objects without metadata.namespace are in Settings.Namespace. While [node] namespace changes, the
// old and the new epoch have different namespaces, and Options.ProxyNamespaces returns both. For a
// proxy whose namespace differs from Settings.Namespace, objects without a namespace are in the
// proxy's namespace. Its view has a model.Mesh of its own, which is rebuilt after each change of
// the files. The other views share the model.Mesh of the configuration, and are called current.

// ownDefault returns the namespace of objects that name none, for a proxy in the given namespace;
// "" stands for the namespace of the settings. Callers of ownDefault and isCurrent hold mu.
func (s *Server) ownDefault(namespace string) string {
	if namespace == s.settings.Namespace ||
		s.options.ProxyNamespaces != nil && slices.Contains(s.options.ProxyNamespaces(),
			namespace) {
		return namespace
	}
	return ""
}

// isCurrent reports whether a view uses the model.Mesh of the configuration.
func (s *Server) isCurrent(v *served) bool {
	return v.namespace == "" || v.namespace == s.config.namespace
}

func (s *Server) newWorld() *model.Mesh {
	world := model.NewMesh(s.options.Domain, s.effectiveMesh())
	world.SetKeySets(s.keySets.KeySet)
	s.setModules(world)
	return world
}

// updateOthers builds a new model.Mesh for each namespace whose views are not current (isCurrent),
// and updates these views. Only Run may call it.
func (s *Server) updateOthers() {
	if s.outdated = !s.config.loaded; s.outdated {
		return
	}
	if s.outdated = s.config.closed != nil; s.outdated {
		for _, v := range s.views {
			if !s.isCurrent(v) {
				s.update(v, model.ChangeSummary{})
			}
		}
		return
	}
	worlds := map[string]*model.Mesh{}
	for _, v := range s.views {
		if s.isCurrent(v) {
			continue
		}
		if worlds[v.namespace] == nil {
			worlds[v.namespace] = s.newWorld()
			worlds[v.namespace].Apply(additions(s.config.store.Objects(v.namespace)))
		}
		s.update(v, v.SetMesh(worlds[v.namespace], view.NewCache()))
	}
}

// updateViews updates all views after a change of the configuration. Only Run may call it.
func (s *Server) updateViews(touched model.ChangeSummary) {
	for _, v := range s.views {
		if s.isCurrent(v) {
			s.update(v, touched)
		}
	}
	s.updateOthers()
}

// additions returns changes that add all objects.
func additions(objects []*object.Object) []object.Change {
	changes := make([]object.Change, 0, len(objects))
	for _, o := range objects {
		changes = append(changes, object.Change{New: o})
	}
	return changes
}

// applyNamespaces moves objects that name no namespace to the namespace of the settings, if that
// has changed. It also updates the views with a model.Mesh of their own (see isCurrent) if they are
// outdated. Only Run may call it, without mu.
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
	c.store.SetDefaultNamespace(namespace)
	c.store.Load() // problems contain the namespace, so the files must be loaded again
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objectsChanged()
	c.namespace = namespace
	c.recordStore()
	c.reset(s.newWorld())
	c.apply(additions(c.store.Objects(namespace)))
	if s.close(model.ChangeSummary{}) {
		s.reopen()
	}
	for _, v := range s.views {
		if s.isCurrent(v) && c.closed == nil {
			v.Update(v.SetMesh(c.world, c.cache))
		}
	}
	s.updateOthers()
	s.reportProblems()
}
