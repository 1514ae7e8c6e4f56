package resource

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Key identifies a resource by type and name.
type Key struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// Compare orders keys by type and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Type, other.Type), cmp.Compare(k.Name, other.Name))
}

// Snapshot holds all resources of a feed at one moment. It is immutable and shared.
type Snapshot struct {
	// Sequence is the number of the snapshot in its feed; the initial, empty snapshot has number 0.
	Sequence  uint64
	Published time.Time

	sets map[string]map[string]*Resource // resources by type URL and name
	// sequence number of the last snapshot that changed a resource of a type, by type URL
	changed map[string]uint64
	// keys of resources that are known not to exist; nil unless the feed is on demand (see
	// NewOnDemandFeed)
	absent map[Key]bool
	// refusals of the newest version of resources, by key; nil if there are none
	refused map[Key]*RefusedVersion
	// removed resources that remain in the snapshot because clients refused others
	retained map[Key]bool
}

// IsRetained reports whether the publisher removed a resource that remains in the snapshot, because
// clients refused another resource.
func (s *Snapshot) IsRetained(key Key) bool { return s.retained[key] }

// Refusal returns the refusal of the newest version of a resource; nil if no client refused it.
func (s *Snapshot) Refusal(key Key) *RefusedVersion { return s.refused[key] }

// AllRefused returns all refusals by key. Callers must not modify the map.
func (s *Snapshot) AllRefused() map[Key]*RefusedVersion { return s.refused }

// Get returns a resource, or nil if the snapshot has none with the key.
func (s *Snapshot) Get(key Key) *Resource { return s.sets[key.Type][key.Name] }

// ExistenceUnknown reports whether it is still unknown if a resource exists, because the publisher
// has neither set it nor reported it absent. It is always false on feeds that are not on demand.
func (s *Snapshot) ExistenceUnknown(key Key) bool {
	return s.absent != nil && s.Get(key) == nil && !s.absent[key]
}

// ByType returns all resources of a type by name. Callers must not modify the map.
func (s *Snapshot) ByType(typeURL string) map[string]*Resource { return s.sets[typeURL] }

// LastChange returns the sequence number of the last snapshot that changed a resource of a type, or
// 0. If it returns the same number for two snapshots of a feed, they have the same resources of the
// type.
func (s *Snapshot) LastChange(typeURL string) uint64 { return s.changed[typeURL] }

// WithoutType returns a copy of the snapshot that has no resources of a type.
func (s *Snapshot) WithoutType(typeURL string) *Snapshot {
	if s.sets[typeURL] == nil {
		return s
	}
	other := *s
	other.sets, other.changed = maps.Clone(s.sets), maps.Clone(s.changed)
	delete(other.sets, typeURL)
	delete(other.changed, typeURL)
	return &other
}

// Types returns the sorted type URLs of the types that have resources.
func (s *Snapshot) Types() []string { return slices.Sorted(maps.Keys(s.sets)) }

// Change is the difference between two snapshots of a feed.
type Change struct {
	Set    []*Resource // new resources, and those with new content
	Remove []Key
	// on a feed on demand: keys of resources that were removed or are known not to exist
	KnownAbsent []Key
	// ListenersClosedByPolicy has listeners that a policy closes. They are removed even if clients
	// refuse other resources.
	ListenersClosedByPolicy map[Key]bool
}

// history is the number of snapshots for which a feed stores the changed keys. A reader whose
// snapshot is older must compare whole snapshots.
const history = 64

// Feed distributes the snapshots of one kind of proxy from its publisher to all readers.
type Feed struct {
	mu      sync.Mutex
	current *Snapshot
	next    chan struct{}
	// keys that the snapshot with sequence number i changed, at index i % history
	changed  [history][]Key
	complete bool
	acceptance

	watchers int
	left     time.Time // when the last watcher left, or when the feed was created
}

// NewFeed returns a feed with an empty snapshot, whose sequence number is 0. Readers must wait for
// the first Publish.
func NewFeed() *Feed {
	return &Feed{current: &Snapshot{sets: map[string]map[string]*Resource{},
		changed: map[string]uint64{}}, next: make(chan struct{}), left: time.Now(),
		acceptance: newAcceptance()}
}

// NewOnDemandFeed returns a feed whose publisher determines whether a resource exists only when a
// client requests the resource. Until the publisher sets the resource or reports it absent, it is
// pending.
func NewOnDemandFeed() *Feed {
	f := NewFeed()
	f.current.absent = map[Key]bool{}
	return f
}

// Publish applies a change and returns the new snapshot, or the current one if nothing has changed.
// After the first call, even with an empty change, servers use the feed.
func (f *Feed) Publish(change Change) *Snapshot {
	f.mu.Lock()
	snapshot, refusals := f.publish(change)
	f.mu.Unlock()
	if refusals {
		f.notify()
	}
	return snapshot
}

// publish implements Publish. refusals reports whether the feed has refusals, or had some before.
// The caller must hold mu.
func (f *Feed) publish(change Change) (snapshot *Snapshot, refusals bool) {
	refusals = len(f.refusals) > 0
	e := f.edit()
	for _, r := range change.Set {
		key := r.Key()
		delete(e.absent, key)
		old := e.sets[r.Type][r.Name]
		if old != nil && old.Version == r.Version && !f.retained[key] {
			if !slices.Equal(old.Origins, r.Origins) {
				// the content is equal and only the origins differ, so clients need no update
				e.writable(r.Type)[r.Name] = r
			}
			continue
		}
		f.replaced(old, r)
		e.put(r)
	}
	for _, k := range change.Remove {
		if e.absent[k] {
			delete(e.absent, k)
			e.keys = append(e.keys, k)
		}
	}
	for _, k := range change.KnownAbsent {
		if !e.absent[k] && e.sets[k.Type][k.Name] == nil {
			e.keys = append(e.keys, k)
		}
		e.absent[k] = true
	}
	for _, k := range slices.Concat(change.Remove, change.KnownAbsent) {
		if old := e.sets[k.Type][k.Name]; old != nil && !f.retained[k] {
			f.dropped(old)
			e.remove(k)
		}
	}
	f.closed = change.ListenersClosedByPolicy
	for k := range f.closed {
		if f.retained[k] {
			delete(f.retained, k)
			e.remove(k)
		}
		delete(f.removed, k)
	}
	if len(change.Set) > 0 {
		f.restored = nil
	}
	f.count()
	if len(e.keys) == 0 && f.complete {
		if len(e.cloned) > 0 {
			f.current = &Snapshot{Sequence: f.current.Sequence, Published: f.current.Published,
				sets: e.sets, changed: f.current.changed, absent: e.absent, refused: f.current.refused,
				retained: f.current.retained}
		}
		return f.current, false
	}
	f.complete = true
	return e.commit(), refusals || len(f.refusals) > 0
}

// edit collects the changes of a feed's next snapshot until they are committed.
type edit struct {
	feed   *Feed
	sets   map[string]map[string]*Resource
	cloned map[string]bool // types whose map of resources was copied already and may be modified
	absent map[Key]bool
	keys   []Key // keys of the changed resources
}

// edit begins a change. The caller must hold mu until it has called commit.
func (f *Feed) edit() *edit {
	return &edit{feed: f, sets: maps.Clone(f.current.sets), cloned: map[string]bool{},
		absent: maps.Clone(f.current.absent)}
}

// writable returns the map of a type's resources after copying it, so that it may be modified.
func (e *edit) writable(typeURL string) map[string]*Resource {
	if !e.cloned[typeURL] {
		e.cloned[typeURL] = true
		if e.sets[typeURL] == nil {
			e.sets[typeURL] = map[string]*Resource{}
		} else {
			e.sets[typeURL] = maps.Clone(e.sets[typeURL])
		}
	}
	return e.sets[typeURL]
}

func (e *edit) put(r *Resource) {
	e.writable(r.Type)[r.Name] = r
	e.keys = append(e.keys, r.Key())
}

func (e *edit) remove(key Key) {
	delete(e.writable(key.Type), key.Name)
	e.keys = append(e.keys, key)
}

// commit makes the edited snapshot the current one and returns it.
func (e *edit) commit() *Snapshot {
	f := e.feed
	f.retain(e)
	sequence := f.current.Sequence + 1
	changed := maps.Clone(f.current.changed)
	for _, k := range e.keys {
		changed[k.Type] = sequence
	}
	var refused map[Key]*RefusedVersion
	if len(f.refusals) > 0 {
		refused = make(map[Key]*RefusedVersion, len(f.refusals))
	}
	for key, m := range f.refusals {
		one := m.RefusedVersion
		one.OfferToNewClients = m.LocalCause || m.accepted || m.Retrying
		refused[key] = &one
	}
	f.current = &Snapshot{Sequence: sequence, Published: time.Now(), sets: e.sets, changed: changed,
		absent: e.absent, refused: refused, retained: maps.Clone(f.retained)}
	f.changed[sequence%history] = e.keys
	close(f.next)
	f.next = make(chan struct{})
	return f.current
}

// Current returns the newest snapshot, and a channel that is closed when there is a newer one.
// While the sequence number is 0, nothing has been published, and servers must wait.
func (f *Feed) Current() (*Snapshot, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.next
}

// ChangedSince returns, without duplicates, the keys that have changed since the snapshot with the
// given sequence number. ok is false if the stored history does not reach back that far.
func (f *Feed) ChangedSince(sequence uint64) (keys []Key, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sequence > f.current.Sequence || f.current.Sequence-sequence > history || sequence == 0 {
		return nil, false
	}
	if f.current.Sequence == sequence+1 {
		return f.changed[f.current.Sequence%history], true
	}
	seen := map[Key]bool{}
	for s := sequence + 1; s <= f.current.Sequence; s++ {
		for _, k := range f.changed[s%history] {
			if !seen[k] {
				seen[k] = true
				keys = append(keys, k)
			}
		}
	}
	return keys, true
}

// AddWatcher counts the caller as a watcher of the feed until the caller calls leave, which it may
// call only once.
func (f *Feed) AddWatcher() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watchers--
		f.left = time.Now()
	}
}

// IdleSince returns when the last watcher left the feed; zero while there is a watcher.
func (f *Feed) IdleSince() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers > 0 {
		return time.Time{}
	}
	return f.left
}
