package view

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/patch"
	"outrider.org/outrider/agent/resource"
)

// A refused EnvoyFilter must not delay changes of other objects. If a client refuses a resource
// that EnvoyFilters changed, the view publishes it with the EnvoyFilters of its last accepted
// version. This override ends when the proxy's EnvoyFilters change, or with
// RetryEnvoyFilterOverrides.

// EnvoyFilterOverride replaces the newest EnvoyFilters for one resource.
type EnvoyFilterOverride struct {
	resource.Key
	Reason  string           `json:"reason"`            // error message of the client
	Filters lastgood.Objects `json:"filters,omitempty"` // EnvoyFilters that are applied
	// newest EnvoyFilters, which are not applied
	Refused lastgood.Objects `json:"refused,omitempty"`
}

// override is an EnvoyFilterOverride that is applied.
type override struct {
	EnvoyFilterOverride
	set  *patch.Set
	used []patch.Patch // patches that had an effect on the refused version
}

// era is a set of patches, with the sequence of the first snapshot translated with it.
type era struct {
	since uint64
	set   *patch.Set
}

// maxEras bounds the number of earlier sets of patches that a view stores.
const maxEras = 16

// beginEra applies a set of patches to all resources from now on, and ends all overrides.
func (v *ProxyView) beginEra(set *patch.Set) {
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

// earlier returns the set of patches of a refused resource's last accepted version, nil if it is
// not known.
func (v *ProxyView) earlier(key resource.Key, of *resource.RefusedVersion) *patch.Set {
	if of.LastAcceptedSequence == 0 {
		return nil
	}
	if former, ok := v.patches.former[key]; ok && of.LastAcceptedSequence <= former.since {
		return former.set
	}
	for _, e := range slices.Backward(v.patches.eras) {
		if e.since <= of.LastAcceptedSequence {
			return e.set
		}
	}
	return nil
}

// setOf returns the set of patches that applies to a resource.
func (v *ProxyView) setOf(r *resource.Resource) *patch.Set {
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
		return v.patches.set // the EnvoyFilters have changed, so the newest ones are tried
	}
	stored.Refused = refused // refused has equal objects, with their current positions in the files
	set := patch.NewSet(v.cache.filters(stored.Filters), v.node)
	v.patches.overrides[key] = &override{stored, set, v.patches.set.Apply(r).UsedPatches}
	return set
}

// differing returns those objects that equal none of the others.
func differing(objects, others []*object.Object) (found []*object.Object) {
	for _, o := range objects {
		if !slices.ContainsFunc(others, func(p *object.Object) bool { return object.Equal(o, p) }) {
			found = append(found, o)
		}
	}
	return found
}

// OverrideEnvoyFilters translates refused resources again, with the EnvoyFilters of their last
// accepted versions, and publishes them. It returns the overrides that have begun.
func (v *ProxyView) OverrideEnvoyFilters(refused map[resource.Key]*resource.RefusedVersion) (all []EnvoyFilterOverride) {
	for key, of := range refused {
		if of.OfferToNewClients || of.InUse() == nil || v.patches.overrides[key] != nil ||
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
		o := EnvoyFilterOverride{Key: key, Reason: of.Reason, Filters: earlier.Objects(),
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

// SuspectedEnvoyFilters returns the EnvoyFilters that may have caused the refusal of a resource:
// those of o.Refused that patched the resource, or all of o.Refused if none did. If o.Refused is
// empty, it returns those of o.Filters that were removed since.
func (v *ProxyView) SuspectedEnvoyFilters(o EnvoyFilterOverride) []*object.Object {
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

// EnvoyFilterOverrides returns all overrides, sorted by key.
func (v *ProxyView) EnvoyFilterOverrides() (all []EnvoyFilterOverride) {
	for _, o := range v.patches.overrides {
		all = append(all, o.EnvoyFilterOverride)
	}
	all = slices.AppendSeq(all, maps.Values(v.patches.stored))
	slices.SortFunc(all, func(x, y EnvoyFilterOverride) int { return x.Key.Compare(y.Key) })
	return all
}

// RestoreEnvoyFilterOverrides passes the overrides of an earlier view to v. An override is applied
// if the current EnvoyFilters are those that were refused. Call it before the first Update.
func (v *ProxyView) RestoreEnvoyFilterOverrides(all []EnvoyFilterOverride) {
	for _, o := range all {
		v.patches.stored[o.Key] = o
	}
}

// RetryEnvoyFilterOverrides ends all overrides, publishes omitted Telemetries, and sends refused
// resources to clients again.
func (v *ProxyView) RetryEnvoyFilterOverrides() {
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
	if len(v.unobserved) > 0 {
		v.observeAgain()
		v.publish()
	}
	v.feed.RetryRefused()
}

// original returns a translated resource before patches are applied, nil if there is none.
func (v *ProxyView) original(key resource.Key) *resource.Resource {
	if r := v.patches.originals[key]; r != nil {
		return r
	}
	if r := v.change[key]; r != nil {
		return r
	}
	return v.current(key)
}
