package view

import (
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/patch"
	"outrider.org/outrider/agent/resource"
)

// patches applies EnvoyFilters to everything that a view publishes.
type patches struct {
	set *patch.Set
	// patched or removed resources before the patches were applied
	originals map[resource.Key]*resource.Resource
	added     map[resource.Key]*resource.Resource
	published map[resource.Key]bool // resources that are published because patches add them
	used      map[resource.Key][]patch.Patch

	eras      []era // current and earlier sets of patches, the newest last
	overrides map[resource.Key]*override
	// for each resource whose override has ended: the override's patches, with the sequence of the
	// last snapshot translated with them
	former map[resource.Key]era
	stored map[resource.Key]EnvoyFilterOverride
}

func newPatches() patches {
	return patches{set: &patch.Set{}, originals: map[resource.Key]*resource.Resource{},
		published: map[resource.Key]bool{}, used: map[resource.Key][]patch.Patch{},
		overrides: map[resource.Key]*override{}, former: map[resource.Key]era{},
		stored: map[resource.Key]EnvoyFilterOverride{}, eras: []era{{0, &patch.Set{}}}}
}

func patchUnit(key resource.Key) string { return "patch/" + key.Type + "/" + key.Name }

// emit patches a resource and publishes the result.
func (v *ProxyView) emit(r *resource.Resource) {
	key, out := r.Key(), v.observed(r)
	delete(v.patches.used, key)
	if set := v.setOf(r); !set.Empty() {
		result := set.Apply(out)
		v.report(patchUnit(key), dedupe(result.Problems))
		if out = result.Resource; len(result.UsedPatches) > 0 {
			v.patches.used[key] = result.UsedPatches
		}
	}
	if out == r {
		delete(v.patches.originals, key)
	} else {
		v.patches.originals[key] = r
	}
	v.change[key] = out
}

// retract withdraws a published resource, and forgets its patches.
func (v *ProxyView) retract(key resource.Key) {
	if !v.patches.set.Empty() {
		v.report(patchUnit(key), nil)
	}
	delete(v.patches.originals, key)
	delete(v.patches.used, key)
	delete(v.patches.overrides, key)
	delete(v.patches.former, key)
	delete(v.unobserved, key)
	v.change[key] = nil
}

// repatch determines which patches apply to the proxy. If they changed, it patches all resources
// again.
func (v *ProxyView) repatch() {
	set := patch.NewSet(v.cache.filters(v.world.EnvoyFilters(v.node)), v.node)
	if set.Equal(v.patches.set) {
		return
	}
	for unit := range v.problems {
		if strings.HasPrefix(unit, "patch/") {
			delete(v.problems, unit)
		}
	}
	v.beginEra(set)
	for _, keys := range v.units {
		for _, key := range keys {
			if original := v.original(key); original != nil {
				v.emit(original)
			}
		}
	}
	added, problems := set.AddedResources()
	v.patches.added = make(map[resource.Key]*resource.Resource, len(added))
	for _, r := range added {
		v.patches.added[r.Key()] = r
	}
	v.report("patches", problems)
}

// reconcileAdded publishes the resources that patches add. A translated resource of the same name
// has precedence.
func (v *ProxyView) reconcileAdded() {
	if len(v.patches.added)+len(v.patches.published) == 0 {
		v.report("patches/taken", nil)
		return
	}
	generated := map[resource.Key]bool{}
	for _, keys := range v.units {
		for _, key := range keys {
			if v.patches.added[key] != nil || v.patches.published[key] {
				generated[key] = true
			}
		}
	}
	for key := range v.patches.published {
		if v.patches.added[key] == nil && !generated[key] {
			v.change[key] = nil
		}
	}
	v.patches.published = map[resource.Key]bool{}
	var problems []object.Problem
	for key, r := range v.patches.added {
		if generated[key] {
			p := object.ProblemAt(r.Origins[0], condition.Warning, key.Name+
				" is there already: what this adds under the name has no effect",
				"rename it, or merge")
			p.Field = "spec.configPatches"
			problems = append(problems, p)
			continue
		}
		v.change[key], v.patches.published[key] = r, true
	}
	v.report("patches/taken", dedupe(problems))
}

// unused reports patches that had no effect on any resource.
func (v *ProxyView) unused() {
	used := map[patch.Patch]bool{}
	for _, entries := range v.patches.used {
		for _, entry := range entries {
			used[entry] = true
		}
	}
	for _, o := range v.patches.overrides {
		for _, entry := range o.used {
			used[entry] = true
		}
	}
	v.report("patches/idle", dedupe(v.patches.set.UnusedPatches(used)))
}

// filters returns the parsed EnvoyFilters. Each is parsed once for all views.
func (c *Cache) filters(objects []*object.Object) []*patch.EnvoyFilter {
	filters := make([]*patch.EnvoyFilter, len(objects))
	for i, o := range objects {
		if c.byFilter[o] == nil {
			c.byFilter[o], _ = patch.Parse(o) // validation has already reported the findings
		}
		filters[i] = c.byFilter[o]
	}
	return filters
}
