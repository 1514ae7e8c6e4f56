package resource

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// Client is one stream of one proxy.
type Client struct {
	Proxy  string // equal for all epochs of an agent
	Stream uint64 // later ones have higher numbers
}

// Refused is the newest version of a resource that a client refused. It is immutable.
type Refused struct {
	Resource *Resource `json:"resource"` // the refused version
	// Accepted is the last accepted version, maybe only its version, which stays in use; nil: none.
	Accepted *Resource `json:"accepted,omitempty"`
	Replaced []Key     `json:"replaced,omitempty"` // removed listeners that stay
	Reason   string    `json:"reason"`             // of the client
	// Local means that only clients refused it that may be the only ones to do so.
	Local bool `json:"local,omitempty"`
	// Unbound means that all clients that refused it could not bind the listener.
	Unbound bool `json:"unbound,omitempty"`

	Sequence uint64    `json:"-"` // of the last snapshot with the accepted version; 0: unknown
	Since    time.Time `json:"-"` // when another version replaced that; zero: unknown
	Attempt  int       `json:"-"` // grows with each Retry: who refused it tries it once more
	// Offered means that clients that connect get the refused version first: another client accepted
	// it, Local is set, or it is tried again.
	Offered bool `json:"-"`
	// Retrying means that a Retry has no answer yet.
	Retrying bool `json:"-"`
}

// InUse returns the last accepted version if its content is known, else nil.
func (r *Refused) InUse() *Resource {
	if !r.Accepted.Known() {
		return nil
	}
	return r.Accepted
}

// Nack is a client's refusal of one resource.
type Nack struct {
	Resource *Resource
	Held     *Resource   // what the client has instead, maybe only its version; nil: nothing
	Replaces []*Resource // listeners of the client which the refused one may replace, if removed
	Reason   string
	Local    bool // a state of the client's host, or the client has the resource nevertheless
	Unbound  bool // Envoy cannot bind the listener
}

// acceptance is what clients accepted and refused of a feed's resources.
type acceptance struct {
	// open is the size of unaccepted and refusals: while it is 0, Accept needs no lock
	open       atomic.Int64
	unaccepted map[Key]bool    // the newest version was accepted by no client
	accepted   map[Key]version // the last accepted version where it is not the newest
	removed    map[Key]version // last accepted versions of resources that were removed lately
	closed     map[Key]bool    // of the last Change
	retained   map[Key]bool    // removed resources that are in the snapshot for refused ones
	refusals   map[Key]*refusal
	restored   map[Key]Refused // until the first publication
	notify     func()          // called without the lock when refusals change
	// streams of proxies that have answered a response with listeners, see Join. An Envoy that
	// drains accepts listeners without looking at them: of listeners the newest stream counts.
	streams map[string][]joined
}

// joined is a stream and the epoch of its Envoy.
type joined struct {
	epoch  int
	stream uint64
}

func (j joined) compare(other joined) int {
	return cmp.Or(cmp.Compare(j.epoch, other.epoch), cmp.Compare(j.stream, other.stream))
}

// version is a resource, the sequence of a snapshot that had it, and when it was replaced.
type version struct {
	resource *Resource
	sequence uint64
	replaced time.Time
}

// refusal is the refusal of the newest version of a resource.
type refusal struct {
	Refused
	by       map[Client]bool // clients
	accepted bool            // by another client
}

func newAcceptance() acceptance {
	return acceptance{unaccepted: map[Key]bool{}, accepted: map[Key]version{},
		removed: map[Key]version{}, retained: map[Key]bool{}, refusals: map[Key]*refusal{},
		streams: map[string][]joined{}, notify: func() {}}
}

// Join records that a client has answered a response with listeners: the older ones of its proxy
// are replaced and drain. Later epochs have higher numbers; those of one number, or whose number is
// not known (0), are ordered by stream. The client must call Leave in the end.
func (f *Feed) Join(client Client, epoch int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams[client.Proxy] = append(f.streams[client.Proxy], joined{epoch, client.Stream})
}

// outdated reports whether the proxy of a client has a later one that joined. Callers hold mu.
func (f *Feed) outdated(client Client) bool {
	all := f.streams[client.Proxy]
	if len(all) == 0 {
		return false
	}
	newest := slices.MaxFunc(all, joined.compare).stream
	if !slices.ContainsFunc(all, func(j joined) bool { return j.stream == client.Stream }) {
		return newest > client.Stream
	}
	return newest != client.Stream
}

// OnRefusal sets a function that is called after the refusals of the feed have changed. It must not
// block, nor call the feed.
func (f *Feed) OnRefusal(notify func()) { f.notify = notify }

// count updates open. Callers hold mu.
func (f *Feed) count() { f.open.Store(int64(len(f.unaccepted) + len(f.refusals))) }

// lastAccepted returns the last accepted version of a key. Callers hold mu.
func (f *Feed) lastAccepted(key Key, newest *Resource) version {
	if newest != nil && !f.unaccepted[key] {
		return version{newest, f.current.Sequence, time.Now()}
	}
	return f.accepted[key]
}

// replaced records that a version replaces another one, nil if there was none. Callers hold mu.
func (f *Feed) replaced(old, by *Resource) {
	key := by.Key()
	last := f.lastAccepted(key, old)
	if gone, ok := f.removed[key]; ok {
		last = gone
		delete(f.removed, key)
		delete(f.retained, key)
	}
	stored, restored := f.restored[key]
	if restored && stored.Accepted != nil {
		last = version{resource: stored.Accepted}
	}
	delete(f.restored, key)
	delete(f.refusals, key)
	delete(f.accepted, key)
	delete(f.unaccepted, key)
	// no Envoy requests the type ProxyConfigType
	if by.Type != ProxyConfigType && !(last.resource != nil && last.resource.Version == by.Version) {
		f.unaccepted[key], f.accepted[key] = true, last
	}
	if restored && stored.Resource.Version == by.Version {
		stored.Resource = by
		f.refusals[key] = &refusal{Refused: stored, by: map[Client]bool{}}
	}
}

// dropped records that a resource was removed. Callers hold mu.
func (f *Feed) dropped(old *Resource) {
	key := old.Key()
	if last := f.lastAccepted(key, old); last.resource != nil && key.Type != SecretType {
		f.removed[key] = version{resource: last.resource, sequence: f.current.Sequence}
	}
	delete(f.unaccepted, key)
	delete(f.accepted, key)
	delete(f.refusals, key)
}

// Accept records that a client accepted resources of the snapshot with a sequence. Listeners do not
// count if a later client of the proxy has joined.
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
			if f.unaccepted[key] && f.accepted[key].sequence < sequence {
				f.accepted[key] = version{r, sequence, time.Now()}
			}
			continue
		}
		delete(f.unaccepted, key)
		if m := f.refusals[key]; m == nil {
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

// reconcile ends a refusal if all clients accept the resource. Callers hold mu.
func (f *Feed) reconcile(e *edit, key Key) {
	if m := f.refusals[key]; m.accepted && len(m.by) == 0 {
		delete(f.refusals, key)
		delete(f.accepted, key)
	}
	e.keys = append(e.keys, key)
}

// Refuse records that a client refused resources, and returns the snapshot after it. Refusals of
// versions that are not the newest have no effect. What an older client refuses of listeners is
// local to it, see Join.
func (f *Feed) Refuse(client Client, nacks ...Nack) *Snapshot {
	f.mu.Lock()
	e := f.edit()
	for _, n := range nacks {
		key := n.Resource.Key()
		newest := e.sets[key.Type][key.Name]
		if newest == nil || newest.Version != n.Resource.Version || f.retained[key] {
			continue
		}
		if !f.accepted[key].resource.Known() && n.Held != nil {
			f.accepted[key] = version{resource: n.Held}
		}
		m := f.refusals[key]
		if m == nil {
			m = &refusal{by: map[Client]bool{}, accepted: !f.unaccepted[key],
				Refused: Refused{Resource: newest, Local: true, Unbound: true}}
			f.refusals[key] = m
		} else if m.by[client] && !m.Retrying && m.Reason == n.Reason {
			continue
		}
		m.by[client] = true
		m.Unbound = m.Unbound && n.Unbound
		m.Local = m.Local && (n.Local || key.Type == ListenerType && f.outdated(client))
		m.Accepted, m.Sequence = f.accepted[key].resource, f.accepted[key].sequence
		m.Since = f.accepted[key].replaced
		m.Reason, m.Retrying = n.Reason, false
		for _, r := range n.Replaces {
			if e.sets[r.Type][r.Name] != nil && !f.retained[r.Key()] || f.closed[r.Key()] {
				continue
			}
			if _, ok := f.removed[r.Key()]; !ok && r.Known() {
				f.removed[r.Key()] = version{resource: r, sequence: f.current.Sequence}
			}
			if !slices.Contains(m.Replaced, r.Key()) {
				m.Replaced = append(slices.Clip(m.Replaced), r.Key())
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

// Leave ends the refusals of a client that is gone. What no client accepted stays refused.
func (f *Feed) Leave(client Client) {
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

// Retry has refused resources other than secrets sent again, once, to the clients that refused
// them, and to those that connect meanwhile.
func (f *Feed) Retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.edit()
	for key, m := range f.refusals {
		if key.Type == SecretType {
			continue // Envoy accepts one that equals the refused one without looking at it
		}
		m.Attempt++
		m.Retrying = true
		e.keys = append(e.keys, key)
	}
	if len(e.keys) > 0 {
		e.commit()
	}
}
