package bus

import (
	"context"
	"sync"
)

// unknownUser is the UID of a connection whose user the bus does not report. It is (uid_t)-1, which
// no user has.
const unknownUser = ^uint32(0)

// callers caches the user of each calling connection, so that limits apply per user. The bus is
// queried once per connection; it never reuses unique names.
type callers struct {
	mu     sync.Mutex
	known  map[string]uint32
	early  map[string][]*call // calls waiting for their sender's user, by sender
	size   int                // number of calls in early
	asking chan string        // senders to look up
}

func newCallers() *callers {
	return &callers{known: map[string]uint32{}, early: map[string][]*call{},
		asking: make(chan string, mostUnknown)}
}

// identify sets the user of a call and reports whether it is known. If it is not, the call is
// queued until the user is known; queued is false if the queue is full. It never blocks.
func (c *callers) identify(one *call) (known, queued bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if uid, ok := c.known[one.sender]; ok {
		one.uid = uid
		return true, false
	}
	before := c.early[one.sender]
	switch {
	case len(before) == 0:
		select {
		case c.asking <- one.sender:
		default:
			return false, false
		}
	case len(before) >= mostEarly, c.size >= mostUnknown:
		return false, false
	}
	c.early[one.sender] = append(before, one)
	c.size++
	return false, true
}

// learn records the user of a connection and returns its queued calls.
func (c *callers) learn(sender string, uid uint32) []*call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= mostKnown {
		clear(c.known) // active connections are looked up again
	}
	c.known[sender] = uid
	calls := c.early[sender]
	delete(c.early, sender)
	c.size -= len(calls)
	for _, one := range calls {
		one.uid = uid
	}
	return calls
}

// identify looks up the user of a connection and admits its queued calls.
func (s *session) identify(ctx context.Context, sender string) {
	uid, err := s.authority.user(ctx, sender)
	if err != nil {
		uid = unknownUser // unknown users may only read
	}
	for _, c := range s.callers.learn(sender, uid) {
		s.admit(c)
	}
}
