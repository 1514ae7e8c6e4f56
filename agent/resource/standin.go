package resource

import (
	"cmp"
	"maps"
	"slices"
)

// StandIn is the last resource of a name that a client took, kept because one refused what came
// after it. Clients that have nothing under the name get it first while the newest is still what
// was refused, and then the newest, which they may take or refuse in their turn. Of a newer one
// that nobody has judged it waits for the verdict. It goes when the name is removed, and when the
// newest is the same again. When a client takes the newest and none refuses it, it rests, until one
// refuses the newest again, or the newest is another: that somebody takes it proves little, as an
// Envoy that drains takes any listener without a look.
type StandIn struct {
	*Resource
	Refused string // the version in whose place it stands
}

// Refusal is what a client says of a resource.
type Refusal struct {
	Key     Key
	Version string // of what it refuses
	// what it took before and goes on with; nil: nothing that others could be given
	Held *Resource
}

// StandIn returns what stands in for a resource, nil if nothing does. It may be nil itself.
func (f *Feed) StandIn(refused *Resource) *Resource {
	all := f.standIns.Load()
	if all == nil || refused == nil {
		return nil
	}
	if in := (*all)[refused.Key()]; in.Refused == refused.Version {
		return in.Resource
	}
	return nil
}

// StandIns returns all that stand in for others, and those that wait for what is said of the
// newest, by type and name.
func (f *Feed) StandIns() []StandIn {
	all := f.standIns.Load()
	if all == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(*all), func(x, y StandIn) int {
		return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Name, y.Name))
	})
}

// Recall takes in stand-ins of another feed. Before the first publication any may: those that fit
// nothing then are dropped.
func (f *Feed) Recall(standIns ...StandIn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.awake()
	for _, in := range standIns {
		all[in.Key()] = in
	}
	f.keep(all)
	f.wake()
}

// Refused tells that a client refuses resources, until it Forgives their keys.
func (f *Feed) Refused(refusals ...Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refusers == nil {
		f.refusers = map[Key]int{}
	}
	all, others := f.awake(), false
	for _, r := range refusals {
		f.refusers[r.Key]++
		if in, ok := f.standInAfter(r, all[r.Key]); ok {
			all[r.Key], others = in, true
			delete(f.resting, r.Key)
		}
	}
	if others {
		f.keep(all)
		f.wake() // a client may have refused the newest before, and have nothing
	}
}

// standInAfter is what stands in once a client has refused something, where that changes; known is
// what does so now. Callers hold mu.
func (f *Feed) standInAfter(r Refusal, known StandIn) (in StandIn, changes bool) {
	newest := f.current.Get(r.Key)
	// the word on a version that is not the newest any more
	late := newest == nil || newest.Version != r.Version
	switch {
	case late && known.Resource != nil && newest != nil && known.Refused == newest.Version:
		return known, false
	case r.Held != nil:
		return StandIn{r.Held, r.Version}, true
	case late || known.Resource != nil && known.Refused == r.Version:
		return known, false
	case known.Resource == nil:
		known = f.resting[r.Key]
	}
	return StandIn{known.Resource, r.Version}, known.Resource != nil
}

// Forgive takes back Refused, for a client that took something newer, asks for it no more or is
// gone.
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
		key := r.Key()
		now := f.current.Get(key)
		if left[key].Resource == nil || f.refusers[key] > 0 || now == nil ||
			now.Version != r.Version {
			continue
		}
		if f.resting == nil {
			f.resting = map[Key]StandIn{}
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

// awake returns a copy of the stand-ins that do not rest. Callers hold mu.
func (f *Feed) awake() map[Key]StandIn {
	if all := f.standIns.Load(); all != nil {
		return maps.Clone(*all)
	}
	return map[Key]StandIn{}
}

// keep makes those the stand-ins that still stand for something. Callers hold mu.
func (f *Feed) keep(all map[Key]StandIn) {
	if f.complete {
		maps.DeleteFunc(all, func(key Key, in StandIn) bool {
			now := f.current.Get(key)
			return now == nil || now.Version == in.Version
		})
	}
	if len(all) == 0 {
		f.standIns.Store(nil)
		return
	}
	f.standIns.Store(&all)
}
