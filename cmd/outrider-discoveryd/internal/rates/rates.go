// Package rates limits the requests of each identity.
package rates

import (
	"maps"
	"sync"
	"time"
)

// Limits of the requests of one identity. All hosts of a service account have the same identity, so
// a burst must suffice for the start of a fleet.
const (
	IdentityPerSecond = 100
	IdentityBurst     = 1000
	// maximum number of identities whose requests are counted separately; all others share one
	// limit
	maxIdentities = 16_384

	interval = time.Second / IdentityPerSecond
	idleTime = IdentityBurst * interval // time without requests after which a whole burst is allowed again
)

// Limiter limits the requests of each identity. Its zero value is ready for use. It is safe for
// concurrent use.
type Limiter struct {
	mu sync.Mutex
	// time at which the next request of an identity is due at the rate of IdentityPerSecond
	next  map[string]time.Time
	swept time.Time // time of the last removal of idle identities
}

// Allow reports whether an identity may make another request now.
func (l *Limiter) Allow(identity string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	earliest := now.Add(-idleTime)
	if _, known := l.next[identity]; !known && len(l.next) >= maxIdentities {
		if now.Sub(l.swept) >= time.Second {
			l.swept = now
			maps.DeleteFunc(l.next, func(_ string, at time.Time) bool { return at.Before(earliest) })
		}
		if len(l.next) >= maxIdentities {
			identity = ""
		}
	}
	at := l.next[identity]
	if at.Before(earliest) {
		at = earliest
	}
	if !at.Before(now) {
		return false
	}
	if l.next == nil {
		l.next = map[string]time.Time{}
	}
	l.next[identity] = at.Add(interval)
	return true
}
