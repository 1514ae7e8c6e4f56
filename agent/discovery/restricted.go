package discovery

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// Files with an unsupported access policy (for example an AuthorizationPolicy) must not admit what
// they forbid. While there are such files, the world stays in the last good state, the one
// before them. Without a last good state, proxies get no resources at all.

// admit returns the changes of the files that may take effect now; others are withheld until the
// files restrict nothing. Callers hold the server's mu.
func (c *configuration) admit(changes []object.Change) []object.Change {
	first := !c.loaded
	c.restricted = c.store.Restricted(c.restricted)
	if !c.restricted && len(c.withheld) == 0 {
		c.good, c.closed = nil, false
		return changes
	}
	c.withhold(changes)
	if c.restricted {
		c.closed = c.closed || first && c.good == nil
		if first {
			return c.restore()
		}
		return nil
	}
	all := slices.SortedFunc(maps.Values(c.withheld), object.Change.Compare)
	c.withheld, c.good, c.closed = nil, nil, false
	return all
}

// withhold merges changes into the withheld ones.
func (c *configuration) withhold(changes []object.Change) {
	if c.withheld == nil {
		c.withheld = map[object.Key]object.Change{}
	}
	for _, change := range changes {
		key := change.Newest().Key
		if earlier, ok := c.withheld[key]; ok {
			change.Old = earlier.Old
		}
		c.withheld[key] = change
		if change.Old == change.New {
			delete(c.withheld, key)
		}
	}
}

// restore returns the changes that produce the last good state, and withholds the versions of the
// files.
func (c *configuration) restore() []object.Change {
	for _, o := range c.good {
		c.withheld[o.Key] = object.Change{Old: o, New: c.withheld[o.Key].New}
	}
	good := c.good
	c.good = nil
	return additions(good)
}

// inForce returns the objects in force, sorted by object.Age. Those that name no namespace are in the
// specified one.
func (c *configuration) inForce(namespace string) []*object.Object {
	all := map[object.Key]*object.Object{}
	for _, o := range c.store.Objects(namespace) {
		all[o.Key] = o
	}
	for _, change := range c.withheld {
		if change.New != nil {
			delete(all, change.New.In(namespace).Key)
		}
		if change.Old != nil {
			o := change.Old.In(namespace)
			all[o.Key] = o
		}
	}
	return slices.SortedFunc(maps.Values(all), object.Age)
}

// setLastGood makes objects the last good state of a configuration that is not loaded yet.
func (c *configuration) setLastGood(objects []*object.Object) {
	c.restricted, c.good = true, slices.Clone(objects)
}

// moveWithheld moves withheld changes and the last good state to the default namespace.
func (c *configuration) moveWithheld() {
	in := func(o *object.Object) *object.Object {
		if o != nil {
			o = o.In(c.namespace)
		}
		return o
	}
	var changes []object.Change
	for _, change := range c.withheld {
		changes = append(changes, object.Change{Old: in(change.Old), New: in(change.New)})
	}
	if c.withheld = nil; len(changes) > 0 {
		c.withhold(changes)
	}
	for i, o := range c.good {
		c.good[i] = o.In(c.namespace)
	}
}

// update updates a view, or publishes an empty snapshot if the configuration is closed.
func (s *Server) update(v *served, touched model.Touched) {
	if s.config.closed {
		v.Feed().Publish(resource.Change{})
		return
	}
	v.Update(touched)
}

// Closed returns why nothing is served although the files were read, or why a policy is not in
// force; "" otherwise. It never blocks, as readiness depends on it.
func (s *Server) Closed() string {
	if why := s.closed.Load(); why != nil {
		return *why
	}
	return ""
}

// whyClosed returns the result of Closed, nil for "". Callers hold the server's mu.
func (c *configuration) whyClosed() *string {
	if !c.closed {
		return nil
	}
	why := "nothing of the mesh configuration is served"
	for _, p := range c.stored {
		if p.Severity == condition.Error {
			why += ": " + p.String()
			break
		}
	}
	return &why
}
