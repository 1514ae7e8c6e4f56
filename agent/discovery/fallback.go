package discovery

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// When Envoy refuses a resource, the objects whose change produced it are reverted to their
// previous version. The refused version stays out of force, also in the next run, until the object
// changes, a certificate changes or a reload tries it again.

const (
	// refusalTime is how long after a change a refusal is attributed to it. Envoy may wait for a
	// health check before it answers; a later refusal has another cause, for example a new Envoy.
	refusalTime = 5 * time.Minute
	maxApplied  = 64
)

// applied is a change of the configuration in force, which Envoy may refuse.
type applied struct {
	at      time.Time
	objects []objectChange
	mesh    *meshChange // nil: MeshConfig did not change

	reverted bool // at least in part
}

type objectChange struct {
	realm *realm
	object.Change
}

// meshChange is the mesh configuration before a change, and the text after it.
type meshChange struct {
	before     *mesh.Config
	beforeText []byte
	afterText  []byte
}

// publication is a snapshot of a view's feed and the change that produced it.
type publication struct {
	sequence uint64
	by       *applied
}

// applied records a change once the views have published it. Callers of this and the following
// functions hold mu.
func (s *Server) applied(a *applied) {
	a.at = time.Now()
	for _, v := range s.views {
		v.publishedBy(a)
	}
	s.recent = slices.DeleteFunc(s.recent,
		func(old *applied) bool { return a.at.Sub(old.at) > refusalTime })
	if s.recent = append(s.recent, a); len(s.recent) > maxApplied {
		s.recent = slices.Delete(s.recent, 0, 1)
	}
}

// publishedBy records the change that produced the newest snapshot, unless one is recorded.
func (v *served) publishedBy(a *applied) {
	now, _ := v.Feed().Current()
	if n := len(v.publications); n > 0 && v.publications[n-1].sequence == now.Sequence {
		return
	}
	v.publications = append(v.publications, publication{now.Sequence, a})
	if len(v.publications) > maxApplied {
		v.publications = slices.Delete(v.publications, 0, 1)
	}
}

// madeBy returns the index in s.recent of the change that produced the current version of r.
func (s *Server) madeBy(v *served, r *resource.Resource) (index int, ok bool) {
	sequence, ok := v.Feed().LastChange(r.Key())
	if !ok {
		return 0, false
	}
	for _, p := range v.publications {
		if p.sequence == sequence {
			index = slices.Index(s.recent, p.by)
			return index, index >= 0
		}
	}
	return 0, false
}

// fallBack reverts the objects to blame for a refused resource, and reports whether that changed
// the resource. Of the objects that changed together with the resource, it tries those among
// origins, then those among the resource's origins, then all. If these are reverted already, it
// tries older changes.
func (s *Server) fallBack(v *served, r *resource.Resource, origins []resource.Origin,
	message string) bool {
	made, ok := s.madeBy(v, r)
	if !ok || v.realm.restricted { // a restricted realm's world does not change
		return false
	}
	for i := made; i >= 0 && time.Since(s.recent[i].at) <= refusalTime; i-- {
		changes := s.revertible(v.realm, i)
		sets := [][]object.Change{among(changes, origins), among(changes, r.Origins)}
		if len(origins) > 0 && origins[0].Kind == string(object.EnvoyFilter) {
			sets = slices.Insert(sets, 0, among(changes, origins[:1]))
		}
		if i == made {
			sets = append(sets, changes)
		}
		tried := 0
		for _, set := range sets {
			if len(set) > tried {
				if tried = len(set); s.revert(v, r, s.recent[i], set, message) {
					return true
				}
			}
		}
		if s.revertMesh(v, r, s.recent[i], message) {
			return true
		}
		if !s.recent[made].reverted {
			return false // another cause produced the resource, for example a certificate
		}
	}
	return false
}

// revertible returns the objects of a realm that s.recent[index] changed, each with its version
// before and the one in force now. It leaves out objects that were reverted since, and
// PeerAuthentications: an earlier version may accept plain text that this one forbids.
func (s *Server) revertible(r *realm, index int) []object.Change {
	var changes []object.Change
	for _, c := range s.recent[index].objects {
		key := c.Change.Newest().Key
		refused, ok := r.refused[key]
		if c.realm != r || ok && refused.InForce != c.New || key.Kind == object.PeerAuthentication {
			continue
		} else if !ok {
			for _, later := range s.recent[index+1:] {
				for _, l := range later.objects {
					if l.realm == r && l.Change.Newest().Key == key {
						c.New = l.New
					}
				}
			}
		}
		if c.Old != c.New { // else it is back, or gone again
			changes = append(changes, c.Change)
		}
	}
	return changes
}

// among returns the changes of objects that are among origins.
func among(changes []object.Change, origins []resource.Origin) []object.Change {
	var found []object.Change
	for _, c := range changes {
		key := c.Newest().Key
		if slices.ContainsFunc(origins, func(o resource.Origin) bool {
			return o.Kind == string(key.Kind) && o.Namespace == key.Namespace && o.Name == key.Name
		}) {
			found = append(found, c)
		}
	}
	return found
}

// revert undoes changes and reports whether that changed r; if not, it restores them.
func (s *Server) revert(v *served, r *resource.Resource, a *applied, changes []object.Change,
	message string) bool {
	back := make([]object.Change, len(changes))
	for i, c := range changes {
		back[i] = object.Change{Old: c.New, New: c.Old}
	}
	s.enact(v.realm, back, a)
	if v.has(r) {
		s.enact(v.realm, changes, a)
		return false
	}
	a.reverted = true
	for _, c := range changes {
		key := c.Newest().Key
		refused, again := v.realm.refused[key]
		if !again {
			refused.Version = c.New
		}
		refused.InForce, refused.Message = c.Old, message
		v.realm.refused[key] = refused
		s.options.Logger.Warn("mesh object goes back to the version before", "object", key.String(),
			"error", message)
	}
	return true
}

// has reports whether a resource is the view's current version.
func (v *served) has(r *resource.Resource) bool {
	snapshot, _ := v.Feed().Current()
	now := snapshot.Get(r.Key())
	return now != nil && now.Version == r.Version
}

// enact applies changes of a realm's objects and publishes the result.
func (s *Server) enact(r *realm, changes []object.Change, by *applied) {
	touched := r.apply(changes)
	for _, v := range s.views {
		if v.realm == r {
			v.update(touched)
			v.publishedBy(by)
		}
	}
	s.dropCertificates()
}

// apply applies object changes to the realm's world, cache, references and counters.
func (r *realm) apply(changes []object.Change) model.Touched {
	r.count(changes)
	touched := r.world.Apply(changes)
	r.cache.Drop(touched)
	r.refs.update(r.world, touched)
	return touched
}

// revertMesh undoes a change of MeshConfig and reports whether that changed r; if not, it restores
// MeshConfig. A change of mutual TLS is not undone.
func (s *Server) revertMesh(v *served, r *resource.Resource, a *applied, message string) bool {
	if a.mesh == nil || s.refusedMesh != nil || bytes.Equal(a.mesh.beforeText, a.mesh.afterText) ||
		!s.mesh.SameMutualTLS(a.mesh.before) {
		return false
	}
	after := s.mesh
	s.mesh, s.meshText = a.mesh.before, a.mesh.beforeText
	s.reconfigure()
	if v.has(r) {
		s.mesh, s.meshText = after, a.mesh.afterText
		s.reconfigure()
		return false
	}
	for _, v := range s.views {
		v.publishedBy(a)
	}
	a.reverted = true
	s.refusedMesh = &lastgood.RefusedMesh{Text: a.mesh.afterText, Message: message}
	s.takeMesh(s.meshRead) // reports the refusal as a problem
	return true
}

// override returns the changes of the files without changes to versions that Envoy refused.
func (r *realm) override(changes []object.Change) []object.Change {
	if len(r.refused)+len(r.waiting) == 0 {
		return changes
	}
	var all []object.Change
	for _, c := range changes {
		key := c.Newest().Key
		if refused, ok := r.waiting[key]; ok {
			delete(r.waiting, key)
			if object.Equal(refused.Version, c.New) {
				refused.Version = c.New
				r.refused[key] = refused
				c.New = refused.InForce
			}
		} else if refused, ok := r.refused[key]; ok {
			if object.Equal(refused.Version, c.New) { // it moved in its file
				refused.Version = c.New
				r.refused[key] = refused
				continue
			}
			delete(r.refused, key)
			c.Old = refused.InForce
		}
		if c.Old != c.New {
			all = append(all, c)
		}
	}
	for key, refused := range r.waiting {
		if refused.Version == nil {
			delete(r.waiting, key)
			r.refused[key] = refused
			all = append(all, object.Change{New: refused.InForce})
		}
	}
	if r.store.Waiting() == 0 {
		clear(r.waiting) // their files are gone
	}
	return all
}

// refusedObjects returns the realm's refused versions, sorted by place.
func (r *realm) refusedObjects() []lastgood.Refused {
	all := slices.AppendSeq(slices.Collect(maps.Values(r.refused)), maps.Values(r.waiting))
	slices.SortFunc(all, func(x, y lastgood.Refused) int {
		return object.Age(x.Newest(), y.Newest())
	})
	return all
}

// refusedProblems returns the problems of the versions that Envoy refused.
func (r *realm) refusedProblems() []Problem {
	var all []Problem
	for _, refused := range r.refused {
		all = append(all, refusedObject(refused))
	}
	return all
}

// refusedObject returns the problem of a version that Envoy refused.
func refusedObject(refused lastgood.Refused) Problem {
	o := refused.Newest()
	fix := "correct it; the version before stays in use"
	switch {
	case refused.Version == nil:
		fix = "restore it, or change what depends on it; it stays in use"
	case refused.InForce == nil:
		fix = "correct it; it is not in use"
	}
	return Problem{File: o.File, Line: o.Line, Object: o.String(),
		Severity: condition.Error, Message: refused.Message,
		Fix: fix + " until it changes, or a reload tries it again"}
}
