package bus

import "sync"

// Limits of concurrent work. The bus itself allows 256 connections per user, and 128 pending calls
// per connection.
const (
	mostCalls       = 256 // queued calls of all users except root
	mostCallsOfUser = 64  // queued calls of one user except root
	mostRootCalls   = 256 // queued calls of root
	mostOfSender    = 32  // queued calls of one bus connection whose user is root
	mostRefusals    = 64  // queued Busy replies; more are dropped
	readers         = 4   // goroutines that serve all users except root
	rootReaders     = 2   // goroutines that serve root
	// mostUnknown limits the connections whose user is being looked up. Of each further connection
	// only one call is queued.
	mostUnknown     = 1024
	mostEarly       = 8    // queued calls of a connection whose user is being looked up
	mostKnown       = 4096 // cached users of connections
	mostChanges     = 24   // calls in progress that change something, of all users except root
	mostOfUser      = 8    // calls in progress that change something, of one user except root
	mostRootChanges = 32   // calls in progress that change something, of root
)

// limiter limits concurrent work in total and per key.
type limiter[K comparable] struct {
	most, mostEach int

	mu    sync.Mutex
	total int
	each  map[K]int
}

func newLimiter[K comparable](most, mostEach int) *limiter[K] {
	return &limiter[K]{most: most, mostEach: mostEach, each: map[K]int{}}
}

// enter reserves a slot and reports whether one was free.
func (l *limiter[K]) enter(who K) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.most || l.each[who] >= l.mostEach {
		return false
	}
	l.total++
	l.each[who]++
	return true
}

// leave releases a slot.
func (l *limiter[K]) leave(who K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.each[who]--; l.each[who] == 0 {
		delete(l.each, who) // remove unused keys: senders are short-lived
	}
}
