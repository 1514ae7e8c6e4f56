// Package admission limits concurrent connections and expensive operations, in total and per
// client.
//
// A Pool has a total limit and a limit per Key, which is a local user or a remote network. At a
// limit, the place that has been idle longest is evicted, so only busy places keep others out, and
// one key cannot use more than its share. Separate pools isolate clients from each other; a
// Listener selects the pool of each connection. ConnState, ConnContext and Handler connect a
// Listener to an http.Server. NewServer, Bind, Serve and ServeGRPC are how servers begin and end.
package admission

import (
	"context"
	"sync"
	"time"
)

// Limits are the limits of a Pool.
type Limits struct {
	Total  int // places
	PerKey int // places per key
}

// Stats are the counters of a Pool since its creation.
type Stats struct {
	Evicted uint64 // idle places that were evicted
	Refused uint64 // calls of Enter without a free place
}

// Sum returns the sum of the counters of pools.
func Sum(pools ...*Pool) (all Stats) {
	for _, pool := range pools {
		stats := pool.Stats()
		all.Evicted += stats.Evicted
		all.Refused += stats.Refused
	}
	return all
}

// Pool admits places up to its limits. It is safe for concurrent use.
type Pool struct {
	limits Limits

	mu      sync.Mutex
	places  map[Key]map[*Place]struct{}
	size    int
	idle    int           // of size
	changed chan struct{} // closed when a place is released or becomes idle; nil: no waiter
	stats   Stats
}

// Place is one admission. It ends with Leave or its eviction.
type Place struct {
	pool  *Pool
	key   Key
	evict func()
	idle  time.Time // start of idleness; zero: busy
}

// NewPool returns an empty pool.
func NewPool(limits Limits) *Pool {
	return &Pool{limits: limits, places: map[Key]map[*Place]struct{}{}}
}

// Enter returns a busy place and reports whether one was available. If the place is evicted while
// idle, evict is called from the goroutine of another caller; it must not block.
func (p *Pool) Enter(key Key, evict func()) (*Place, bool) {
	place, victim, _ := p.enter(key, evict, false)
	if victim != nil {
		victim.evict()
	}
	return place, place != nil
}

// Wait is like Enter but waits for a place until ctx ends. Its error is that of ctx.
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

func (p *Pool) enter(key Key, evict func(), wait bool) (place, victim *Place,
	changed <-chan struct{}) {
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

// victimFor returns the idle place to evict for a key with own places, or nil: the longest idle
// place of the keys with the most places. Keys with fewer places than own lose none.
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

// oldestIdle returns the longest idle place of places and candidate, or nil if none is idle.
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

// remove removes a place if the pool contains it.
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

// wake wakes all waiters. The caller holds mu.
func (p *Pool) wake() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Stats returns the counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Leave releases the place. Further calls have no effect.
func (place *Place) Leave() {
	p := place.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(place)
	p.wake()
}

// SetIdle allows eviction of the place.
func (place *Place) SetIdle() { place.set(time.Now()) }

// SetBusy prevents eviction of the place. It returns false if the place was already released or
// evicted.
func (place *Place) SetBusy() bool { return place.set(time.Time{}) }

// Held reports whether the place was neither released nor evicted.
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
