package discovery

import (
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/view"
)

// configuration is the mesh configuration of the files, and what of it is in force.
type configuration struct {
	store *store.Store // owned by Run

	// Guarded by the server's mu.
	namespace string // of objects that name none; see namespaces.go
	loaded    bool
	world     *model.World
	cache     *view.Cache
	stored    []Problem        // of the store
	held      []*object.Object // last good versions that the store serves
	objects   map[object.Kind]int
	refs      references

	// restricted is set while the files have an unsupported access policy; see admit.
	restricted bool
	// good is the last good state, until a restricted configuration is loaded; nil: unknown.
	good     []*object.Object
	withheld map[object.Key]object.Change // changes of the files that are not in force
	// closed is set if it is restricted and no good state is known: nothing is served.
	closed bool
}

// reset empties the world, which apply fills. Callers of this and the next function hold the
// server's mu.
func (c *configuration) reset(world *model.World) {
	c.world, c.cache = world, view.NewCache()
	c.objects, c.refs = map[object.Kind]int{}, references{}
}

// apply applies object changes to the world, cache, references and counters.
func (c *configuration) apply(changes []object.Change) model.Touched {
	for _, change := range changes {
		if change.Old != nil {
			c.objects[change.Old.Kind]--
		}
		if change.New != nil {
			c.objects[change.New.Kind]++
		}
	}
	touched := c.world.Apply(changes)
	c.cache.Drop(touched)
	c.refs.update(c.world, touched)
	return touched
}
