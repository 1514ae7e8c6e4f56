package discovery

import (
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// Files with an unsupported access policy (for example an AuthorizationPolicy) must not admit what
// they forbid. While there are such files, the realm's world stays in the last good state, the one
// before them. Without a last good state, proxies get no resources at all.

// admit returns the changes of the files that may take effect now; others are withheld until the
// files restrict nothing. Callers hold the server's mu.
func (r *realm) admit(changes []object.Change) []object.Change {
	first := !r.loaded
	r.restricted = r.store.Restricted(r.restricted)
	if !r.restricted && len(r.withheld) == 0 {
		r.good, r.closed = nil, false
		return changes
	}
	if r.withheld == nil {
		r.withheld = map[object.Key]object.Change{}
	}
	for _, c := range changes {
		r.withhold(c)
	}
	if r.restricted {
		r.closed = r.closed || first && r.good == nil
		if first {
			return r.restore()
		}
		return nil
	}
	var all []object.Change
	for _, c := range r.withheld {
		all = append(all, c)
	}
	slices.SortFunc(all, object.Change.Compare)
	r.withheld, r.good, r.closed = nil, nil, false
	return all
}

// withhold merges a change into the withheld ones.
func (r *realm) withhold(c object.Change) {
	key := c.Newest().Key
	if earlier, ok := r.withheld[key]; ok {
		c.Old = earlier.Old
	}
	r.withheld[key] = c
	if c.Old == c.New {
		delete(r.withheld, key)
	}
}

// restore returns the changes that produce the last good state, and withholds the versions of the
// files.
func (r *realm) restore() []object.Change {
	var changes []object.Change
	for _, o := range r.good {
		changes = append(changes, object.Change{New: o})
		r.withheld[o.Key] = object.Change{Old: o, New: r.withheld[o.Key].New}
	}
	r.good = nil
	return changes
}

// inForce returns the objects in force while changes are withheld, sorted by object.Age.
func (r *realm) inForce() []*object.Object {
	var all []*object.Object
	for _, o := range r.store.Objects() {
		if _, withheld := r.withheld[o.Key]; withheld {
			continue
		}
		all = append(all, o)
	}
	for _, c := range r.withheld {
		if c.Old != nil {
			all = append(all, c.Old)
		}
	}
	slices.SortFunc(all, object.Age)
	return all
}

// inherit initializes a new realm with the last good state of another one.
func (r *realm) inherit(from *realm) {
	if !from.restricted || from.closed {
		return
	}
	r.setLastGood(from.inForce())
}

// setLastGood makes objects the last good state of a realm that is not filled yet.
func (r *realm) setLastGood(objects []*object.Object) {
	r.restricted, r.good = true, []*object.Object{}
	for _, o := range objects {
		r.good = append(r.good, o.In(r.namespace))
	}
}

// update updates a view, or publishes an empty snapshot if its realm is closed.
func (v *served) update(touched model.Touched) {
	if v.realm.closed {
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
func (r *realm) whyClosed() *string {
	if !r.closed {
		return nil
	}
	why := "nothing of the mesh configuration is served"
	for _, p := range r.stored {
		if p.Severity == condition.Error {
			why += ": " + p.String()
			break
		}
	}
	return &why
}
