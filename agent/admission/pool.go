// Package admission bounds what a server admits at a time, by who asks: connections, and operations
// that are expensive.
//
// A Pool has a limit for all and one for each Key, which is a user of this host or the network of
// another host. At a limit the place that has been idle for longest is evicted, so that only what
// is busy can keep others out, and one key can only fill its own share. Places that must never be
// taken by others are a pool of their own: a Listener picks the pool of each connection. ConnState,
// ConnContext and Handler connect a Listener with an http.Server.
package admission

import (
	"context"
	"sync"
	"time"
)

// Limits are the bounds of a Pool.
type Limits struct {
	Total  int // places
	PerKey int // places of one key
}

// Stats count what a Pool did since it was made.
type Stats struct {
	Evicted uint64 // idle places that were given to others
	Refused uint64 // requests for a place that Enter refused
}

// Pool admits places up to its limits. All methods may be called from any goroutine.
type Pool struct {
	limits Limits

	mu      sync.Mutex
	places  map[Key]map[*Place]struct{}
	size    int
	idle    int           // of size
	changed chan struct{} // closed when a place was left or became idle; nil: nobody waits
	stats   Stats
}

// Place is what a Pool admitted, until Leave or its eviction.
type Place struct {
	pool  *Pool
	key   Key
	evict func()
	idle  time.Time // zero: busy
}

// NewPool returns an empty pool.
func NewPool(limits Limits) *Pool {
	return &Pool{limits: limits, places: map[Key]map[*Place]struct{}{}}
}

// Enter takes a place, which is busy, and reports whether there was one. It calls evict, from a
// goroutine of another caller, if the place is evicted while it is idle; evict must not block.
func (p *Pool) Enter(key Key, evict func()) (*Place, bool) {
	place, victim, _ := p.enter(key, evict, false)
	if victim != nil {
		victim.evict()
	}
	return place, place != nil
}

// Wait is Enter, but waits for a place until ctx ends. The error is that of ctx.
func (p *Pool) Wait(ctx context.Context, key Key, evict func()) (*Place, error) {
	for {
		place, victim, changed := p.enter(key, evict, true)
		if victim != nil {
			victim.evict()
		}
		if place != nil {
			return place, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Pool) enter(key Key, evict func(), wait bool) (place, victim *Place, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.places[key]
	switch {
	case len(own) >= p.limits.PerKey:
		victim = oldestIdle(own, nil)
	case p.size >= p.limits.Total:
		victim = p.victimFor(len(own))
	default:
		return p.add(key, evict), nil, nil
	}
	if victim != nil {
		p.remove(victim)
		p.stats.Evicted++
		return p.add(key, evict), victim, nil
	}
	if !wait {
		p.stats.Refused++
		return nil, nil, nil
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return nil, nil, p.changed
}

// victimFor returns the idle place to evict for a key that has the given number of places, nil if
// there is none: the oldest one of those keys that have most. Keys with fewer places than the
// newcomer's lose none to it.
func (p *Pool) victimFor(own int) (victim *Place) {
	if p.idle == 0 {
		return nil
	}
	most := own
	for _, places := range p.places {
		if len(places) < most {
			continue
		}
		if len(places) > most && oldestIdle(places, nil) != nil {
			most, victim = len(places), nil
		}
		victim = oldestIdle(places, victim)
	}
	return victim
}

// oldestIdle returns the place that has been idle for longest, of places and candidate, nil if none
// is idle.
func oldestIdle(places map[*Place]struct{}, candidate *Place) *Place {
	for place := range places {
		if !place.idle.IsZero() && (candidate == nil || place.idle.Before(candidate.idle)) {
			candidate = place
		}
	}
	return candidate
}

func (p *Pool) add(key Key, evict func()) *Place {
	place := &Place{pool: p, key: key, evict: evict}
	if p.places[key] == nil {
		p.places[key] = map[*Place]struct{}{}
	}
	p.places[key][place] = struct{}{}
	p.size++
	return place
}

// remove takes a place out, if it is in.
func (p *Pool) remove(place *Place) {
	own := p.places[place.key]
	if _, ok := own[place]; !ok {
		return
	}
	delete(own, place)
	if len(own) == 0 {
		delete(p.places, place.key)
	}
	p.size--
	if !place.idle.IsZero() {
		p.idle--
	}
}

// wake wakes up those that wait for a place. Callers hold mu.
func (p *Pool) wake() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Stats returns what the pool has counted.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Leave gives the place back. It may be called more than once.
func (place *Place) Leave() {
	p := place.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(place)
	p.wake()
}

// SetIdle makes the place one that may be evicted.
func (place *Place) SetIdle() { place.set(time.Now()) }

// SetBusy makes the place one that is not evicted. It reports false if it was evicted already.
func (place *Place) SetBusy() bool { return place.set(time.Time{}) }

// Held reports whether the place was neither left nor evicted.
func (place *Place) Held() bool {
	place.pool.mu.Lock()
	defer place.pool.mu.Unlock()
	_, ok := place.pool.places[place.key][place]
	return ok
}

func (place *Place) set(idle time.Time) bool {
	p := place.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.places[place.key][place]; !ok {
		return false
	}
	if !place.idle.IsZero() {
		p.idle--
	}
	place.idle = idle
	if !idle.IsZero() {
		p.idle++
		p.wake()
	}
	return true
}
