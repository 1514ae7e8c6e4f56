// Package rates limits the requests of each identity.
package rates

import (
	"maps"
	"sync"
	"time"
)

// Limits of the requests of one identity. All hosts of a service account have the same identity, so
// the burst must suffice when a whole fleet starts.
const (
	RequestsPerSecondPerIdentity = 100
	RequestBurstPerIdentity      = 1000
	// number of identities with a limit of their own; further identities share one limit
	maxIdentities = 16_384

	interval = time.Second / RequestsPerSecondPerIdentity
	// after this time without requests, a burst is allowed again
	idleTime = RequestBurstPerIdentity * interval
)

// Limiter limits the requests of each identity. Its zero value is ready for use. It is safe for
// concurrent use.
type Limiter struct {
	mu sync.Mutex
	// time from which an identity's next request does not exceed RequestsPerSecondPerIdentity
	next  map[string]time.Time
	swept time.Time // last removal of identities without recent requests
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
