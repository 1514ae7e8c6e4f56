package resource

import (
	"encoding/binary"
	"maps"
	"slices"
)

// A client that refuses the newest version of a resource continues to use its last accepted
// version. Meanwhile, two kinds of removed resources remain in the snapshots: those to which the
// last accepted version refers, and listeners that a refused listener may replace.

// retain adds removed resources that clients still need to the next snapshot, and drops those that
// they need no longer. The caller must hold mu.
func (f *Feed) retain(e *edit) {
	if len(f.refusals)+len(f.retained)+len(f.removed) == 0 {
		return
	}
	needed := map[Key]bool{}
	names := map[string][]Key{} // keys of removed resources by name
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
		if m.LastAccepted != nil {
			roots = append(roots, m.LastAccepted)
		}
		for _, key := range m.RetainedListeners {
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

// references searches the resource's message, also inside an Any, for string fields that equal a
// name. It calls found for each key of such a name. lengths are the lengths of all names. The time
// depends on the size of the message only.
func (r *Resource) references(names map[string][]Key, lengths map[uint64]bool, found func(Key)) {
	value := r.EncodedMessage()
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

// HasContent reports whether the content of the resource is known, and not only its version.
func (r *Resource) HasContent() bool { return r != nil && len(r.encoded) > 0 }

// RefusalState holds the refusals of a feed, which can be restored in a later feed of the same
// proxies. It contains no refusals of secrets.
type RefusalState struct {
	// refused versions without content; an entry without version means that clients have not
	// answered the newer version yet
	Refused  []RefusedVersion `json:"refused,omitempty"`
	Retained []*Resource      `json:"retained,omitempty"`
}

// State returns the refusals of the feed, sorted by key.
func (f *Feed) State() RefusalState {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := RefusalState{Refused: slices.Collect(maps.Values(f.restored))}
	for key, m := range f.refusals {
		if key.Type != SecretType {
			one := m.RefusedVersion
			one.Resource = &Resource{Type: key.Type, Name: key.Name, Version: one.Resource.Version}
			s.Refused = append(s.Refused, one)
		}
	}
	for key, last := range f.accepted {
		if last.refused && last.resource != nil && f.refusals[key] == nil && key.Type != SecretType {
			s.Refused = append(s.Refused, RefusedVersion{LastAccepted: last.resource,
				Resource: &Resource{Type: key.Type, Name: key.Name}})
		}
	}
	for key, gone := range f.removed {
		if f.retained[key] || len(f.restored) > 0 {
			s.Retained = append(s.Retained, gone.resource)
		}
	}
	slices.SortFunc(s.Refused, func(x, y RefusedVersion) int {
		return x.Resource.Key().Compare(y.Resource.Key())
	})
	slices.SortFunc(s.Retained, func(x, y *Resource) int { return x.Key().Compare(y.Key()) })
	return s
}

// Restore copies the refusals of an earlier feed to this one; it must be called before the first
// Publish. If a published resource has the refused version, it counts as refused. If it has another
// version, this version is sent to clients.
func (f *Feed) Restore(s RefusalState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restored = map[Key]RefusedVersion{}
	for _, r := range s.Refused {
		f.restored[r.Resource.Key()] = r
	}
	for _, r := range s.Retained {
		f.removed[r.Key()] = version{resource: r}
	}
}
