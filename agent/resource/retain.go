package resource

import "encoding/binary"

// While the newest version of a resource is refused, clients use the last accepted one. The removed
// resources that it refers to stay in the snapshots meanwhile, as do removed listeners that the
// refused one may replace.

// retain restores and removes such resources. Callers hold mu.
func (f *Feed) retain(e *edit) {
	if len(f.refusals)+len(f.retained)+len(f.removed) == 0 {
		return
	}
	needed := map[Key]bool{}
	names := map[string][]Key{} // of what was removed
	lengths := map[uint64]bool{}
	for key := range f.removed {
		if key.Type != ListenerType {
			names[key.Name] = append(names[key.Name], key)
			lengths[uint64(len(key.Name))] = true
		}
	}
	var roots []*Resource
	need := func(key Key) {
		if gone, ok := f.removed[key]; ok && !needed[key] {
			needed[key] = true
			roots = append(roots, gone.resource)
		}
	}
	for _, m := range f.refusals {
		if m.Accepted != nil {
			roots = append(roots, m.Accepted)
		}
		for _, key := range m.replaced {
			need(key)
		}
	}
	for len(roots) > 0 && len(needed) < len(f.removed) {
		root := roots[0]
		roots = roots[1:]
		root.references(names, lengths, need)
	}
	for key := range needed {
		if !f.retained[key] {
			f.retained[key] = true
			e.put(f.removed[key].resource)
		}
	}
	for key := range f.retained {
		if !needed[key] {
			delete(f.retained, key)
			f.removed[key] = version{resource: f.removed[key].resource,
				sequence: f.current.Sequence}
			e.remove(key)
		}
	}
	for key, gone := range f.removed {
		if !f.retained[key] && f.current.Sequence-gone.sequence > history {
			delete(f.removed, key)
		}
	}
}

// references calls found with the keys of the names that fields of the message have. Messages
// within Any count. It takes time in proportion to the message, not to the names.
func (r *Resource) references(names map[string][]Key, lengths map[uint64]bool, found func(Key)) {
	value := r.Value()
	for len(value) > 0 && len(names) > 0 {
		if length, n := binary.Uvarint(value); n > 0 && lengths[length] &&
			length <= uint64(len(value)-n) {
			for _, key := range names[string(value[n:n+int(length)])] {
				found(key)
			}
		}
		value = value[1:]
	}
}

// Known reports whether the content is known, not only the version.
func (r *Resource) Known() bool { return r != nil && len(r.encoded) > 0 }

// Refusal is the refusal of a resource as it is stored.
type Refusal struct {
	Key      Key
	Version  string // the refused one
	Reason   string
	Local    bool      // see Nack
	Unbound  bool      // see Nack
	Held     bool      // see Refused
	Accepted *Resource // the last accepted version; nil: none
	Replaced []Key     // listeners that stay
}

// State has the refusals of a feed for the next feed of the same proxies.
type State struct {
	Refusals []Refusal
	Retained []*Resource // removed resources that stay
}

// State returns the refusals of the feed, in no order, without those of secrets.
func (f *Feed) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	var s State
	for _, stored := range f.restored {
		s.Refusals = append(s.Refusals, stored)
	}
	for key, m := range f.refusals {
		if key.Type != SecretType {
			s.Refusals = append(s.Refusals, Refusal{Key: key, Version: m.Resource.Version,
				Reason: m.Reason, Local: m.local, Unbound: m.Unbound, Held: m.Held,
				Accepted: m.Accepted, Replaced: m.replaced})
		}
	}
	for key, gone := range f.removed {
		if (f.retained[key] || len(f.restored) > 0) && key.Type != SecretType {
			s.Retained = append(s.Retained, gone.resource)
		}
	}
	return s
}

// Restore makes refusals of an earlier feed known. A resource whose version equals the refused one
// counts as refused; a different one is tried. Call it before the first Publish.
func (f *Feed) Restore(s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restored = map[Key]Refusal{}
	for _, r := range s.Refusals {
		f.restored[r.Key] = r
	}
	for _, r := range s.Retained {
		f.removed[r.Key()] = version{resource: r}
	}
}
