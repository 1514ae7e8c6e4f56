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
	away      []string         // directories whose objects are among them
	objects   map[object.Kind]int
	refs      references

	unlisted *string // why the policies of a path are unknown; nil: they are known
	closed   *string // why nothing is served although the files were read; nil: it is
	// what changed while nothing was served; only Hosts and Bindings
	withheld model.Touched
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

// recordStore records the problems of the store and what it holds. Only Run may call it.
func (c *configuration) recordStore() {
	c.loaded, c.stored, c.unlisted = true, c.store.Problems(), nil
	c.held, c.away = c.store.Held(), c.store.Away()
	if p, ok := c.store.Unlisted(); ok {
		c.unlisted = nothingServed(p)
	}
}

func nothingServed(because Problem) *string {
	why := "nothing of the mesh configuration is served: " + because.String()
	return &why
}
