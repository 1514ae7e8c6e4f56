package resource

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Key identifies a resource.
type Key struct{ Type, Name string }

// Snapshot holds all resources of one kind of proxy at one moment. It is immutable and shared.
type Snapshot struct {
	// increments with each snapshot of a feed; 0 is the initial empty one
	Sequence  uint64
	Published time.Time

	sets map[string]map[string]*Resource // type → name → resource
	// type → sequence of the snapshot that last changed its set
	changed map[string]uint64
	// keys that are known not to exist, on a feed of resources on demand; nil on others
	absent map[Key]bool
}

// Get returns a resource, or nil.
func (s *Snapshot) Get(key Key) *Resource { return s.sets[key.Type][key.Name] }

// Pending reports whether it is not known yet if a resource exists. It is always known on feeds
// that are not on demand.
func (s *Snapshot) Pending(key Key) bool {
	return s.absent != nil && s.Get(key) == nil && !s.absent[key]
}

// Set returns all resources of a type by name. Callers must not modify it.
func (s *Snapshot) Set(typeURL string) map[string]*Resource { return s.sets[typeURL] }

// Changed returns the sequence of the last snapshot that changed a resource of a type, or 0.
// Snapshots of one feed with equal values have equal sets.
func (s *Snapshot) Changed(typeURL string) uint64 { return s.changed[typeURL] }

// Types returns the types that have resources, sorted.
func (s *Snapshot) Types() []string { return slices.Sorted(maps.Keys(s.sets)) }

// Change is the difference between two snapshots.
type Change struct {
	Set    []*Resource // new or with new content
	Remove []Key
	Absent []Key // on a feed of resources on demand: removed, and known not to exist
}

// history is the number of snapshots whose changed keys a feed remembers. A reader that is further
// behind compares whole snapshots.
const history = 64

// Feed distributes the snapshots of one kind of proxy from one publisher to all readers.
type Feed struct {
	mu       sync.Mutex
	current  *Snapshot
	next     chan struct{}
	changed  [history][]Key // keys changed by the snapshot with sequence i, at i % history
	complete bool

	followers int
	left      time.Time // when the last follower left, or the creation time
}

// NewFeed returns a feed whose snapshot is empty and not yet complete.
func NewFeed() *Feed {
	return &Feed{current: &Snapshot{sets: map[string]map[string]*Resource{},
		changed: map[string]uint64{}}, next: make(chan struct{}), left: time.Now()}
}

// NewFeedOnDemand returns a feed that learns whether a resource exists once a client wants it: a
// resource that is neither set nor absent is pending.
func NewFeedOnDemand() *Feed {
	f := NewFeed()
	f.current.absent = map[Key]bool{}
	return f
}

// Publish applies a change and returns the new snapshot, or the current one if nothing changes. The
// first call completes the feed even if it is empty.
func (f *Feed) Publish(change Change) *Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	sets := maps.Clone(f.current.sets)
	cloned := map[string]bool{}
	writable := func(typeURL string) map[string]*Resource {
		if !cloned[typeURL] {
			cloned[typeURL] = true
			if sets[typeURL] == nil {
				sets[typeURL] = map[string]*Resource{}
			} else {
				sets[typeURL] = maps.Clone(sets[typeURL])
			}
		}
		return sets[typeURL]
	}
	var keys []Key
	absent := maps.Clone(f.current.absent)
	for _, r := range change.Set {
		delete(absent, Key{r.Type, r.Name})
		if old := sets[r.Type][r.Name]; old != nil && old.Version == r.Version {
			if !slices.Equal(old.Origins, r.Origins) {
				if old.Accepted() {
					r.Accept()
				}
				writable(r.Type)[r.Name] = r // same bytes, other origins: nothing to send
			}
			continue
		}
		writable(r.Type)[r.Name] = r
		keys = append(keys, Key{r.Type, r.Name})
	}
	for _, k := range change.Remove {
		if absent[k] {
			delete(absent, k)
			keys = append(keys, k)
		}
	}
	for _, k := range change.Absent {
		if !absent[k] && sets[k.Type][k.Name] == nil {
			keys = append(keys, k)
		}
		absent[k] = true
	}
	for _, k := range slices.Concat(change.Remove, change.Absent) {
		if sets[k.Type][k.Name] != nil {
			delete(writable(k.Type), k.Name)
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 && f.complete {
		if len(cloned) > 0 {
			f.current = &Snapshot{Sequence: f.current.Sequence, Published: f.current.Published,
				sets: sets, changed: f.current.changed, absent: absent}
		}
		return f.current
	}
	f.complete = true
	sequence := f.current.Sequence + 1
	changed := maps.Clone(f.current.changed)
	for _, k := range keys {
		changed[k.Type] = sequence
	}
	f.current = &Snapshot{Sequence: sequence, Published: time.Now(), sets: sets, changed: changed,
		absent: absent}
	f.changed[f.current.Sequence%history] = keys
	close(f.next)
	f.next = make(chan struct{})
	return f.current
}

// Current returns the newest snapshot and a channel that is closed when there is a newer one. At
// sequence 0 nothing was published yet, and servers must wait.
func (f *Feed) Current() (*Snapshot, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.next
}

// Since returns the keys that changed after the snapshot with the given sequence, without
// duplicates; ok is false if the history does not reach that far.
func (f *Feed) Since(sequence uint64) (keys []Key, ok bool) {
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

// LastChange returns the sequence of the snapshot that last changed a key; ok is false if the
// history does not reach that far.
func (f *Feed) LastChange(key Key) (sequence uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.current.Sequence
	for s := now; s > 0 && now-s < history; s-- {
		if slices.Contains(f.changed[s%history], key) {
			return s, true
		}
	}
	return 0, false
}

// Follow counts a reader until it calls leave, once.
func (f *Feed) Follow() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followers++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.followers--
		f.left = time.Now()
	}
}

// Idle returns since when nobody follows the feed, zero if somebody does.
func (f *Feed) Idle() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.followers > 0 {
		return time.Time{}
	}
	return f.left
}
