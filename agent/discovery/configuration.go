package discovery

import (
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/view"
)

// configuration holds the objects read from the files, and what is derived from them.
type configuration struct {
	store *store.Store // store of the files' objects; only Run uses it

	// The fields below are guarded by the server's mu.
	namespace string // namespace of objects that name none; see namespaces.go
	loaded    bool
	world     *model.Mesh
	cache     *view.Cache
	stored    []Problem         // problems that the store has found
	held      []*object.Object  // last good versions that are in force instead of invalid objects
	away      []string          // unavailable directories, whose objects are in held
	folders   map[string]uint64 // directories that have policies; see store.Options
	policies  map[string]int    // numbers of policies by file; see store.Options
	lost      bool              // folders and policies may be incomplete; see store.Options
	objects   map[object.Kind]int
	groups    map[object.Key]*object.Object // WorkloadGroups
	refs      references

	unlisted *string // why the policies of a path are unknown; nil: all are known
	// why nothing is served although the files were read; nil: resources are served
	closed *string
	// changes made while nothing was served; only ChangedHosts and RoutedGateways are set
	withheld model.ChangeSummary
}

// reset replaces the model.Mesh by an empty one, which apply fills. Callers of reset and apply hold
// the server's mu.
func (c *configuration) reset(world *model.Mesh) {
	c.world, c.cache = world, view.NewCache()
	c.objects, c.refs = map[object.Kind]int{}, references{}
	c.groups = map[object.Key]*object.Object{}
}

// apply applies changes of objects to all fields that are derived from the objects: world (the
// model of all objects), cache, groups, refs and the numbers of objects.
func (c *configuration) apply(changes []object.Change) model.ChangeSummary {
	for _, change := range changes {
		if change.Old != nil {
			c.objects[change.Old.Kind]--
		}
		if change.New != nil {
			c.objects[change.New.Kind]++
		}
		if key := change.NewElseOld().Key; key.Kind == object.WorkloadGroup {
			delete(c.groups, key)
			if change.New != nil {
				c.groups[key] = change.New
			}
		}
	}
	touched := c.world.Apply(changes)
	c.cache.Drop(touched)
	if slices.ContainsFunc(changes, model.ChangesDNSNames) {
		c.cache.DropNameTables()
	}
	c.refs.update(c.world, touched)
	return touched
}

// recordStore copies the problems and the last good versions of the store. Only Run may call it.
func (c *configuration) recordStore() {
	c.loaded, c.stored, c.unlisted = true, c.store.Problems(), nil
	c.held, c.away, c.folders = c.store.LastGoodObjects(), c.store.MissingPaths(), c.store.PolicyFolderInodes()
	c.policies, c.lost = c.store.PolicyCountsByFile(), c.store.PolicyLocationsIncomplete()
	if p, ok := c.store.PoliciesIncompleteProblem(); ok {
		c.unlisted = nothingServed(p)
	}
}

func nothingServed(because Problem) *string {
	why := "nothing of the mesh configuration is served: " + because.String()
	return &why
}
