package resource

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// Client identifies one xDS stream of one proxy.
type Client struct {
	Proxy  string // identity of the agent, which all its epochs share
	Stream uint64 // number of the stream; streams that open later have higher numbers
}

// RefusedVersion describes a resource whose newest version a client refused. It is immutable.
type RefusedVersion struct {
	Resource *Resource `json:"resource"` // the refused version of the resource
	// LastAccepted is the last accepted version, which clients continue to use; nil: none was
	// accepted. Its content may be unknown.
	LastAccepted *Resource `json:"accepted,omitempty"`
	// removed listeners that stay in the snapshot while the resource is refused
	RetainedListeners []Key  `json:"replaced,omitempty"`
	Reason            string `json:"reason"` // error message of the refusing client
	// LocalCause reports whether each refusal has a cause on the client's host, or comes from an
	// Envoy that is not the newest one of its proxy. If so, other clients receive the refused
	// version.
	LocalCause bool `json:"local,omitempty"`
	// BindFailed reports whether all clients that refused the listener failed to bind it.
	BindFailed bool `json:"unbound,omitempty"`

	// sequence number of the last snapshot with the accepted version; 0 if unknown
	LastAcceptedSequence uint64 `json:"-"`
	// time at which a newer version replaced the accepted one; zero if unknown
	Since time.Time `json:"-"`
	// number of retries, in which the refused version is sent to the refusing clients again
	Retries int `json:"-"`
	// OfferToNewClients reports whether new clients receive the refused version rather than the
	// last accepted one: another client has accepted it, LocalCause is set, or RetryRefused sends
	// it again.
	OfferToNewClients bool `json:"-"`
	// Retrying reports whether RetryRefused has sent the version again and no client has answered
	// it yet.
	Retrying bool `json:"-"`
}

// InUse returns the last accepted version; nil if its content is unknown.
func (r *RefusedVersion) InUse() *Resource {
	if !r.LastAccepted.HasContent() {
		return nil
	}
	return r.LastAccepted
}

// Nack is one client's refusal of one resource.
type Nack struct {
	Resource *Resource
	// version that the client continues to use, maybe without content; nil: none
	VersionInUse *Resource
	// removed listeners that the client still has, and that the refused listener would replace
	ReplacedListeners []*Resource
	Reason            string
	// the cause is on the client's host, or the client uses the resource although it answered with
	// NACK
	LocalCause bool
	BindFailed bool // Envoy cannot bind the listener
}

// acceptance records which resources of a feed clients have accepted and refused.
type acceptance struct {
	// open is the number of entries in unaccepted and refusals. If it is 0, Accept does not lock
	// mu.
	open       atomic.Int64
	unaccepted map[Key]bool // keys whose newest version no client has accepted
	// last accepted version of each key, unless it is the newest one
	accepted map[Key]version
	removed  map[Key]version // last accepted versions of recently removed resources
	// listeners that a policy closes, according to Change.ListenersClosedByPolicy of the last
	// publication
	closed map[Key]bool
	// removed resources that remain in the snapshot because clients refused others
	retained map[Key]bool
	refusals map[Key]*refusal
	// refusals from an earlier feed, which the first publication checks
	restored map[Key]RefusedVersion
	notify   func() // called after refusals have changed, without holding mu
	// streams that have answered a response with listeners (see AddClient), by proxy. A draining
	// Envoy accepts listeners without checking them, so for listeners only the newest stream of a
	// proxy counts.
	streams map[string][]joined
}

// joined is a stream that has answered a response with listeners.
type joined struct {
	epoch  int
	stream uint64
}

func (j joined) compare(other joined) int {
	return cmp.Or(cmp.Compare(j.epoch, other.epoch), cmp.Compare(j.stream, other.stream))
}

// version is an accepted version of a resource, with the sequence number of a snapshot that
// contained it, and the time at which a newer version replaced it.
type version struct {
	resource *Resource
	sequence uint64
	replaced time.Time
	refused  bool // a client has refused a newer version
}

// refusal records who refused the newest version of a resource.
type refusal struct {
	RefusedVersion
	by       map[Client]bool // clients that refused the version
	accepted bool            // another client accepted the refused version
}

func newAcceptance() acceptance {
	return acceptance{unaccepted: map[Key]bool{}, accepted: map[Key]version{},
		removed: map[Key]version{}, retained: map[Key]bool{}, refusals: map[Key]*refusal{},
		streams: map[string][]joined{}, notify: func() {}}
}

// DrainingEpoch stands for the epoch number of a client whose Envoy drains.
const DrainingEpoch = -1

// AddClient records that a client has answered a response with listeners. Answers of older clients
// of its proxy no longer count for listeners, because their Envoys drain. Nor do answers of a
// client with the epoch DrainingEpoch. The order of clients is that of their epochs; if epochs are
// equal or unknown (0), it is that of their streams. The client must call RemoveClient when it
// disconnects.
func (f *Feed) AddClient(client Client, epoch int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams[client.Proxy] = append(f.streams[client.Proxy], joined{epoch, client.Stream})
}

// outdated reports whether a client's Envoy drains: a newer client of the same proxy was added, or
// the client was added with DrainingEpoch. The caller must hold mu.
func (f *Feed) outdated(client Client) bool {
	all := f.streams[client.Proxy]
	if len(all) == 0 {
		return false
	}
	newest := slices.MaxFunc(all, joined.compare)
	if !slices.ContainsFunc(all, func(j joined) bool { return j.stream == client.Stream }) {
		return newest.stream > client.Stream
	}
	return newest.stream != client.Stream || newest.epoch == DrainingEpoch
}

// OnRefusal sets a function that is called after the refusals of the feed have changed. The
// function must neither block nor call methods of the feed.
func (f *Feed) OnRefusal(notify func()) { f.notify = notify }

// count updates open. The caller must hold mu.
func (f *Feed) count() {
	f.open.Store(int64(len(f.unaccepted) + len(f.refusals)))
	if len(f.unaccepted) == 0 {
		f.unaccepted = map[Key]bool{} // frees the memory of a large change
	}
}

// lastAccepted returns the last accepted version of the resource with a key. The caller must hold
// mu.
func (f *Feed) lastAccepted(key Key, newest *Resource) version {
	if newest != nil && !f.unaccepted[key] {
		return version{resource: newest, sequence: f.current.Sequence, replaced: time.Now()}
	}
	return f.accepted[key]
}

// replaced records that a publication replaces the version old of a resource (nil: the resource is
// new) by the version by. The caller must hold mu.
func (f *Feed) replaced(old, by *Resource) {
	key := by.Key()
	last := f.lastAccepted(key, old)
	if gone, ok := f.removed[key]; ok {
		last = gone
		delete(f.removed, key)
		delete(f.retained, key)
	}
	stored, restored := f.restored[key]
	if restored && stored.LastAccepted != nil {
		last = version{resource: stored.LastAccepted}
	}
	last.refused = last.refused || restored || f.refusals[key] != nil
	delete(f.restored, key)
	delete(f.refusals, key)
	delete(f.accepted, key)
	delete(f.unaccepted, key)
	// Envoy never requests a ProxyConfig, so its version cannot become accepted.
	if by.Type != ProxyConfigType && !(last.resource != nil && last.resource.Version == by.Version) {
		f.unaccepted[key] = true
		if last.resource != nil {
			f.accepted[key] = last
		}
	}
	if restored && stored.Resource.Version == by.Version {
		stored.Resource = by
		f.refusals[key] = &refusal{RefusedVersion: stored, by: map[Client]bool{}}
	}
}

// dropped records that a publication removed a resource. The caller must hold mu.
func (f *Feed) dropped(old *Resource) {
	key := old.Key()
	if last := f.lastAccepted(key, old); last.resource != nil && key.Type != SecretType {
		f.removed[key] = version{resource: last.resource, sequence: f.current.Sequence}
	}
	delete(f.unaccepted, key)
	delete(f.accepted, key)
	delete(f.refusals, key)
}

// Accept records that a client accepted resources of the snapshot with the given sequence number.
// Listeners do not count if the client's Envoy drains.
func (f *Feed) Accept(client Client, sequence uint64, resources []*Resource) {
	if f.open.Load() == 0 {
		return
	}
	f.mu.Lock()
	e, outdated := f.edit(), f.outdated(client)
	changed := false
	for _, r := range resources {
		key := r.Key()
		if outdated && key.Type == ListenerType {
			continue
		}
		newest := e.sets[r.Type][r.Name]
		if newest == nil || newest.Version != r.Version {
			if last := f.accepted[key]; f.unaccepted[key] && last.sequence < sequence {
				f.accepted[key] = version{r, sequence, time.Now(), last.refused}
			}
			continue
		}
		delete(f.unaccepted, key)
		if m := f.refusals[key]; m == nil {
			// State contained the version that was accepted before, and no longer does: notify
			if f.accepted[key].refused {
				e.keys = append(e.keys, key)
				changed = true
			}
			delete(f.accepted, key)
		} else if m.by[client] || !m.accepted || m.Retrying {
			delete(m.by, client)
			m.accepted, m.Retrying = true, false
			f.reconcile(e, key)
			changed = true
		}
	}
	f.count()
	if changed {
		e.commit()
	}
	f.mu.Unlock()
	if changed {
		f.notify()
	}
}

// reconcile ends the refusal of a resource if no client refuses it any more and one has accepted
// it. The caller must hold mu.
func (f *Feed) reconcile(e *edit, key Key) {
	if m := f.refusals[key]; m.accepted && len(m.by) == 0 {
		delete(f.refusals, key)
		delete(f.accepted, key)
	}
	e.keys = append(e.keys, key)
}

// Refuse records that a client refused resources, and returns the resulting snapshot. A refusal has
// no effect unless it is about the newest version of a resource. If the client's Envoy drains,
// refused listeners count as LocalCause.
func (f *Feed) Refuse(client Client, nacks ...Nack) *Snapshot {
	f.mu.Lock()
	e := f.edit()
	for _, n := range nacks {
		key := n.Resource.Key()
		newest := e.sets[key.Type][key.Name]
		if newest == nil || newest.Version != n.Resource.Version || f.retained[key] {
			continue
		}
		if !f.accepted[key].resource.HasContent() && n.VersionInUse != nil {
			f.accepted[key] = version{resource: n.VersionInUse}
		}
		m := f.refusals[key]
		if m == nil {
			m = &refusal{by: map[Client]bool{}, accepted: !f.unaccepted[key],
				RefusedVersion: RefusedVersion{Resource: newest, LocalCause: true,
					BindFailed: true}}
			f.refusals[key] = m
		} else if m.by[client] && !m.Retrying && m.Reason == n.Reason {
			continue
		}
		m.by[client] = true
		m.BindFailed = m.BindFailed && n.BindFailed
		m.LocalCause = m.LocalCause && (n.LocalCause || key.Type == ListenerType &&
			f.outdated(client))
		m.LastAccepted, m.LastAcceptedSequence = f.accepted[key].resource, f.accepted[key].sequence
		m.Since = f.accepted[key].replaced
		m.Reason, m.Retrying = n.Reason, false
		for _, r := range n.ReplacedListeners {
			if e.sets[r.Type][r.Name] != nil && !f.retained[r.Key()] || f.closed[r.Key()] {
				continue
			}
			if _, ok := f.removed[r.Key()]; !ok && r.HasContent() {
				f.removed[r.Key()] = version{resource: r, sequence: f.current.Sequence}
			}
			if !slices.Contains(m.RetainedListeners, r.Key()) {
				m.RetainedListeners = append(slices.Clip(m.RetainedListeners), r.Key())
			}
		}
		e.keys = append(e.keys, key)
	}
	f.count()
	changed := len(e.keys) > 0
	snapshot := f.current
	if changed {
		snapshot = e.commit()
	}
	f.mu.Unlock()
	if changed {
		f.notify()
	}
	return snapshot
}

// RemoveClient removes a disconnected client from all refusals. A version that no client has
// accepted remains refused.
func (f *Feed) RemoveClient(client Client) {
	f.mu.Lock()
	f.streams[client.Proxy] = slices.DeleteFunc(f.streams[client.Proxy],
		func(j joined) bool { return j.stream == client.Stream })
	if len(f.streams[client.Proxy]) == 0 {
		delete(f.streams, client.Proxy)
	}
	e := f.edit()
	for key, m := range f.refusals {
		if m.by[client] {
			delete(m.by, client)
			f.reconcile(e, key)
		}
	}
	f.count()
	changed := len(e.keys) > 0
	if changed {
		e.commit()
	}
	f.mu.Unlock()
	if changed {
		f.notify()
	}
}

// RetryRefused makes servers send refused resources, except secrets, again to the clients that
// refused them. Until a client answers, clients that connect receive the refused versions, too.
func (f *Feed) RetryRefused() {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.edit()
	for key, m := range f.refusals {
		if key.Type == SecretType {
			// Envoy accepts a secret without checking it if it equals the one that it refused
			continue
		}
		m.Retries++
		m.Retrying = true
		e.keys = append(e.keys, key)
	}
	if len(e.keys) > 0 {
		e.commit()
	}
}
