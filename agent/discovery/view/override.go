package view

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/patch"
	"outrider.org/outrider/agent/resource"
)

// An EnvoyFilter must not hold back other objects. If a client refuses a resource that EnvoyFilters
// changed, it is first made with the EnvoyFilters that were in force when a client accepted it
// last. That ends when the applicable EnvoyFilters change, or with Retry.

// Override has the EnvoyFilters in force for one resource in place of the newest ones.
type Override struct {
	resource.Key
	Reason  string           `json:"reason"`            // of the client
	Filters lastgood.Objects `json:"filters,omitempty"` // in force for the resource
	Refused lastgood.Objects `json:"refused,omitempty"` // the newest ones that differ
}

// override is an Override in force.
type override struct {
	Override
	set  *patch.Set
	used []patch.Entry // in the refused version
}

// era is a set of patches and the first snapshot that had it.
type era struct {
	since uint64
	set   *patch.Set
}

// maxEras bounds the sets that a view remembers.
const maxEras = 16

// beginEra makes a set of patches the one in force, for all resources.
func (v *View) beginEra(set *patch.Set) {
	current, _ := v.feed.Current()
	for key, o := range v.patches.overrides {
		v.patches.former[key] = era{current.Sequence, o.set}
	}
	clear(v.patches.overrides)
	v.patches.set = set
	v.patches.eras = append(v.patches.eras, era{current.Sequence + 1, set})
	if len(v.patches.eras) > maxEras {
		v.patches.eras = slices.Delete(v.patches.eras, 0, 1)
	}
}

// earlier returns the patches that the last accepted version of a refused resource has, nil if they
// are not known.
func (v *View) earlier(key resource.Key, of *resource.Refused) *patch.Set {
	if of.Sequence == 0 {
		return nil
	}
	if former, ok := v.patches.former[key]; ok && of.Sequence <= former.since {
		return former.set
	}
	for _, e := range slices.Backward(v.patches.eras) {
		if e.since <= of.Sequence {
			return e.set
		}
	}
	return nil
}

// setOf returns the patches for a resource.
func (v *View) setOf(r *resource.Resource) *patch.Set {
	key := r.Key()
	if o := v.patches.overrides[key]; o != nil {
		return o.set
	}
	stored, ok := v.patches.stored[key]
	if !ok {
		return v.patches.set
	}
	delete(v.patches.stored, key)
	refused := differing(v.patches.set.Objects(), stored.Filters)
	if len(differing(refused, stored.Refused))+len(differing(stored.Refused, refused)) > 0 {
		return v.patches.set // tries the new ones
	}
	stored.Refused = refused // with their positions now
	set := patch.NewSet(v.cache.filters(stored.Filters), v.node)
	v.patches.overrides[key] = &override{stored, set, v.patches.set.Apply(r).Used}
	return set
}

// differing returns the objects that are not among others.
func differing(objects, others []*object.Object) (found []*object.Object) {
	for _, o := range objects {
		if !slices.ContainsFunc(others, func(p *object.Object) bool { return object.Equal(o, p) }) {
			found = append(found, o)
		}
	}
	return found
}

// Override makes refused resources again, with the EnvoyFilters of the last accepted version, and
// publishes them. It returns those for which other EnvoyFilters are in force now.
func (v *View) Override(refused map[resource.Key]*resource.Refused) (all []Override) {
	for key, of := range refused {
		if of.Offered || of.InUse() == nil || v.patches.overrides[key] != nil ||
			v.patches.added[key] != nil {
			continue
		}
		earlier := v.earlier(key, of)
		if earlier == nil || earlier.Equal(v.patches.set) {
			continue
		}
		original := v.original(key)
		if original == nil || original.Key() != key {
			continue
		}
		out := earlier.Apply(original).Resource
		if out != nil && out.Version == of.Resource.Version {
			continue
		}
		o := Override{Key: key, Reason: of.Reason, Filters: earlier.Objects(),
			Refused: differing(v.patches.set.Objects(), earlier.Objects())}
		v.patches.overrides[key] = &override{o, earlier, v.patches.used[key]}
		v.emit(original)
		all = append(all, o)
	}
	if len(all) > 0 {
		v.publish()
	}
	return all
}

// Suspects returns the EnvoyFilters with which the resource of an override was refused: those that
// it had and that differ from the ones in force, if there are any; else all that differ, or were
// removed.
func (v *View) Suspects(o Override) []*object.Object {
	var used []*object.Object
	if in := v.patches.overrides[o.Key]; in != nil {
		for _, entry := range in.used {
			if slices.Contains(o.Refused, entry.Object) && !slices.Contains(used, entry.Object) {
				used = append(used, entry.Object)
			}
		}
	}
	switch {
	case len(used) > 0:
		return used
	case len(o.Refused) > 0:
		return o.Refused
	}
	return differing(o.Filters, v.patches.set.Objects())
}

// Overrides returns the overrides in force, sorted.
func (v *View) Overrides() (all []Override) {
	for _, o := range v.patches.overrides {
		all = append(all, o.Override)
	}
	all = slices.AppendSeq(all, maps.Values(v.patches.stored))
	slices.SortFunc(all, func(x, y Override) int { return x.Key.Compare(y.Key) })
	return all
}

// Restore makes the overrides of an earlier view known. An override takes effect if the resource is
// made with the refused content. Call it before the first Update.
func (v *View) Restore(all []Override) {
	for _, o := range all {
		v.patches.stored[o.Key] = o
	}
}

// Retry ends all overrides, and has clients try refused resources again.
func (v *View) Retry() {
	if len(v.patches.overrides) > 0 {
		originals := map[resource.Key]*resource.Resource{}
		for key := range v.patches.overrides {
			originals[key] = v.original(key)
		}
		v.beginEra(v.patches.set)
		for _, r := range originals {
			if r != nil {
				v.emit(r)
			}
		}
		v.publish()
	}
	v.feed.Retry()
}

// original returns a generated resource without patches, nil if there is none.
func (v *View) original(key resource.Key) *resource.Resource {
	if r := v.patches.originals[key]; r != nil {
		return r
	}
	if r := v.change[key]; r != nil {
		return r
	}
	return v.current(key)
}
