package ca

import (
	"maps"
	"sync"
	"time"
)

// Limits of the requests of one identity. All hosts of a service account have the same identity, so
// a burst must suffice for the start of a fleet.
const (
	perSecond = 100
	burst     = 1000
	// maximum number of identities whose requests are counted separately; all others share one
	// limit
	maxIdentities = 16_384

	interval = time.Second / perSecond
	idleTime = burst * interval // time without requests after which a whole burst is allowed again
)

// rates limits the requests of each identity. Its zero value is ready for use.
type rates struct {
	mu sync.Mutex
	// time at which the next request of an identity is due at the rate of perSecond
	next  map[string]time.Time
	swept time.Time // time of the last removal of idle identities
}

// allow reports whether an identity may make another request now.
func (r *rates) allow(identity string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	earliest := now.Add(-idleTime)
	if _, known := r.next[identity]; !known && len(r.next) >= maxIdentities {
		if now.Sub(r.swept) >= time.Second {
			r.swept = now
			maps.DeleteFunc(r.next, func(_ string, at time.Time) bool { return at.Before(earliest) })
		}
		if len(r.next) >= maxIdentities {
			identity = ""
		}
	}
	at := r.next[identity]
	if at.Before(earliest) {
		at = earliest
	}
	if !at.Before(now) {
		return false
	}
	if r.next == nil {
		r.next = map[string]time.Time{}
	}
	r.next[identity] = at.Add(interval)
	return true
}
