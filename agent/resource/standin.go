package resource

import (
	"cmp"
	"maps"
	"slices"
)

// A stand-in is the last resource of a name that a client took, kept because one refused what came after it. Clients that
// have nothing under the name get it first, and then the newest, which they may take or refuse in their turn. It goes when the
// name is removed, and when the newest is the same again. When one of them takes the newest and none refuses it, it rests, until
// one refuses the newest again, or the newest is another: that somebody takes it proves little, as an Envoy that drains takes
// any listener without a look.

// StandIn returns what stands in for a resource, nil if nothing does.
func (f *Feed) StandIn(key Key) *Resource {
	if all := f.standIns.Load(); all != nil {
		return (*all)[key]
	}
	return nil
}

// StandIns returns all that stand in for others, by type and name.
func (f *Feed) StandIns() []*Resource {
	all := f.standIns.Load()
	if all == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(*all), func(x, y *Resource) int {
		return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Name, y.Name))
	})
}

// Recall has resources stand in that did so in another feed. Before the first publication any may: those that fit nothing
// then are dropped.
func (f *Feed) Recall(resources ...*Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stand(resources)
}

// Refused tells that a client refuses what is newest under some keys, until it Forgives them, and what it is known to go on
// with of those.
func (f *Feed) Refused(keys []Key, held []*Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refusers == nil {
		f.refusers = map[Key]int{}
	}
	var awake []*Resource
	for _, key := range keys {
		f.refusers[key]++
		if r := f.resting[key]; r != nil {
			awake = append(awake, r)
			delete(f.resting, key)
		}
	}
	f.stand(append(awake, held...))
}

// Forgive takes back Refused, for a client that took something newer, asks for it no more or is gone.
func (f *Feed) Forgive(keys ...Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if f.refusers[key]--; f.refusers[key] == 0 {
			delete(f.refusers, key)
		}
	}
}

// Taken tells that a client took resources.
func (f *Feed) Taken(resources []*Resource) {
	if f.standIns.Load() == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	left := f.awake()
	for _, r := range resources {
		key := Key{r.Type, r.Name}
		now := f.current.Get(key)
		if left[key] == nil || f.refusers[key] > 0 || now == nil || now.Version != r.Version {
			continue
		}
		if f.resting == nil {
			f.resting = map[Key]*Resource{}
		}
		f.resting[key] = left[key]
		delete(left, key)
	}
	f.keep(left)
}

// outdate takes in that what is newest under some keys is another. Callers hold mu.
func (f *Feed) outdate(keys []Key) {
	for _, key := range keys {
		delete(f.resting, key)
	}
	if f.standIns.Load() != nil {
		f.keep(f.awake())
	}
}

// stand adds stand-ins, and wakes those who serve: a client may have refused the newest before. Callers hold mu.
func (f *Feed) stand(resources []*Resource) {
	if len(resources) == 0 {
		return
	}
	all := f.awake()
	for _, r := range resources {
		all[Key{r.Type, r.Name}] = r
	}
	f.keep(all)
	f.wake()
}

// awake returns a copy of the stand-ins. Callers hold mu.
func (f *Feed) awake() map[Key]*Resource {
	if all := f.standIns.Load(); all != nil {
		return maps.Clone(*all)
	}
	return map[Key]*Resource{}
}

// keep makes those the stand-ins that still stand for something. Callers hold mu.
func (f *Feed) keep(all map[Key]*Resource) {
	if f.complete {
		maps.DeleteFunc(all, func(key Key, r *Resource) bool {
			now := f.current.Get(key)
			return now == nil || now.Version == r.Version
		})
	}
	if len(all) == 0 {
		f.standIns.Store(nil)
		return
	}
	f.standIns.Store(&all)
}
