// Package admission limits concurrent connections and expensive operations, in total and per
// client.
//
// A Pool has slots: a total limit, and a limit per ClientKey, which is a local user or a remote
// network. At a limit, the slot that has been idle longest is evicted. Only busy slots can
// therefore exhaust a pool, and one key cannot use more than its share. Separate pools isolate
// clients from each other; a Listener selects the pool of each connection.
//
// ConnState, ConnContext and abortEvicted connect a Listener to an http.Server. NewServer, Bind,
// Serve and ServeGRPC start and stop servers.
package admission

import (
	"context"
	"sync"
	"time"
)

// Limits are the limits of a Pool.
type Limits struct {
	Total  int // maximum number of slots
	PerKey int // slots per key
}

// Stats are the counters of a Pool since its creation.
type Stats struct {
	Evicted uint64 // idle slots that were evicted
	Refused uint64 // calls of Acquire that found no free slot
}

// SumStats returns the sum of the counters of pools.
func SumStats(pools ...*Pool) (all Stats) {
	for _, pool := range pools {
		stats := pool.Stats()
		all.Evicted += stats.Evicted
		all.Refused += stats.Refused
	}
	return all
}

// Pool admits slots up to its limits. It is safe for concurrent use.
type Pool struct {
	limits Limits

	mu      sync.Mutex
	slots   map[ClientKey]map[*Slot]struct{}
	size    int
	idle    int           // number of idle slots
	changed chan struct{} // closed when a slot is released or becomes idle; nil: nobody waits
	stats   Stats
}

// Slot is the right of one connection or operation. It ends with Release or with its eviction.
type Slot struct {
	pool  *Pool
	key   ClientKey
	evict func()
	idle  time.Time // start of idleness; zero: busy
}

// NewPool returns an empty pool.
func NewPool(limits Limits) *Pool {
	return &Pool{limits: limits, slots: map[ClientKey]map[*Slot]struct{}{}}
}

// Acquire returns a busy slot and reports whether one was available. If the slot is evicted while
// idle, evict is called from the goroutine of another caller; it must not block.
func (p *Pool) Acquire(key ClientKey, evict func()) (*Slot, bool) {
	slot, victim, _ := p.enter(key, evict, false)
	if victim != nil {
		victim.evict()
	}
	return slot, slot != nil
}

// WaitAcquire is like Acquire but waits for a slot until ctx ends. Its error is that of ctx.
func (p *Pool) WaitAcquire(ctx context.Context, key ClientKey, evict func()) (*Slot, error) {
	for {
		slot, victim, changed := p.enter(key, evict, true)
		if victim != nil {
			victim.evict()
		}
		if slot != nil {
			return slot, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Pool) enter(key ClientKey, evict func(), wait bool) (slot, victim *Slot,
	changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.slots[key]
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

// victimFor returns the slot to evict for a key that holds own slots, or nil if there is none:
// among the keys that hold the most slots and have an idle one, the slot that has been idle
// longest. A key that holds fewer than own slots loses none.
func (p *Pool) victimFor(own int) (victim *Slot) {
	if p.idle == 0 {
		return nil
	}
	most := own
	for _, slots := range p.slots {
		if len(slots) < most {
			continue
		}
		if len(slots) > most && oldestIdle(slots, nil) != nil {
			most, victim = len(slots), nil
		}
		victim = oldestIdle(slots, victim)
	}
	return victim
}

// oldestIdle returns the slot that has been idle longest among slots and candidate, or nil if none
// is idle.
func oldestIdle(slots map[*Slot]struct{}, candidate *Slot) *Slot {
	for slot := range slots {
		if !slot.idle.IsZero() && (candidate == nil || slot.idle.Before(candidate.idle)) {
			candidate = slot
		}
	}
	return candidate
}

func (p *Pool) add(key ClientKey, evict func()) *Slot {
	slot := &Slot{pool: p, key: key, evict: evict}
	if p.slots[key] == nil {
		p.slots[key] = map[*Slot]struct{}{}
	}
	p.slots[key][slot] = struct{}{}
	p.size++
	return slot
}

// remove removes a slot if the pool contains it.
func (p *Pool) remove(slot *Slot) {
	own := p.slots[slot.key]
	if _, ok := own[slot]; !ok {
		return
	}
	delete(own, slot)
	if len(own) == 0 {
		delete(p.slots, slot.key)
	}
	p.size--
	if !slot.idle.IsZero() {
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

// Release releases the slot. Further calls have no effect.
func (slot *Slot) Release() {
	p := slot.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(slot)
	p.wake()
}

// SetIdle allows eviction of the slot.
func (slot *Slot) SetIdle() { slot.set(time.Now()) }

// setBusy prevents eviction of the slot. It returns false if the slot was already released or
// evicted.
func (slot *Slot) setBusy() bool { return slot.set(time.Time{}) }

// isHeld reports whether the slot was neither released nor evicted.
func (slot *Slot) isHeld() bool {
	slot.pool.mu.Lock()
	defer slot.pool.mu.Unlock()
	_, ok := slot.pool.slots[slot.key][slot]
	return ok
}

func (slot *Slot) set(idle time.Time) bool {
	p := slot.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.slots[slot.key][slot]; !ok {
		return false
	}
	if !slot.idle.IsZero() {
		p.idle--
	}
	slot.idle = idle
	if !idle.IsZero() {
		p.idle++
		p.wake()
	}
	return true
}
