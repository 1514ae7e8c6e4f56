package bus

import "sync"

// Limits of what is under way at one time. The bus itself allows 256 connections of one user, and 128 calls of each.
const (
	mostCalls       = 256  // of all users but root that wait for an answer from memory
	mostCallsOfUser = 64   // of these, of one user
	mostRootCalls   = 256  // of root
	mostOfSender    = 32   // of these, of one connection
	mostRefusals    = 64   // that wait to be told; more are not told
	readers         = 4    // goroutines that answer
	rootReaders     = 2    // goroutines that answer root
	mostUnknown     = 1024 // connections, and calls of theirs, whose user the bus is being asked for
	mostEarly       = 8    // of these calls, of one connection
	mostKnown       = 4096 // connections whose user is remembered
	mostChanges     = 24   // that ask polkit or wait for the agent, of all users
	mostOfUser      = 8    // of these, of one user
	mostRootChanges = 32   // of root, beside the others'
)

// limiter counts what is under way, by who asked for it.
type limiter[K comparable] struct {
	most, mostEach int

	mu    sync.Mutex
	total int
	each  map[K]int
}

func newLimiter[K comparable](most, mostEach int) *limiter[K] {
	return &limiter[K]{most: most, mostEach: mostEach, each: map[K]int{}}
}

// enter takes a place; false: there is none.
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

// leave gives a place back.
func (l *limiter[K]) leave(who K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.each[who]--; l.each[who] == 0 {
		delete(l.each, who) // senders come and go: none is remembered
	}
}
