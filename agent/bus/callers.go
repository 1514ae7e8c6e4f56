package bus

import (
	"context"
	"sync"
)

// unknownUser is the user of a connection that the bus does not tell. It is nobody's (uid_t -1).
const unknownUser = ^uint32(0)

// callers knows the user of each connection that calls, so that what is under way has limits per
// user. The bus is asked once for each; it never gives a unique name twice.
type callers struct {
	mu     sync.Mutex
	known  map[string]uint32
	early  map[string][]*call // calls that came before the user was known, by sender
	size   int                // of early, in calls
	asking chan string        // senders whose user is not known yet
}

func newCallers() *callers {
	return &callers{known: map[string]uint32{}, early: map[string][]*call{}, asking: make(chan string, mostUnknown)}
}

// identify sets the user of a call and reports whether it is known. Otherwise the call is kept
// until it is, unless there are too many of that kind: kept is false. It never waits.
func (c *callers) identify(one *call) (known, kept bool) {
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

// learn sets the user of a connection and returns the calls that were kept.
func (c *callers) learn(sender string, uid uint32) []*call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= mostKnown {
		clear(c.known) // those that still call are asked for again
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

// identify asks the bus for the users of connections until ctx ends.
func (s *session) identify(ctx context.Context) {
	for {
		select {
		case sender := <-s.callers.asking:
			uid, err := s.authority.user(ctx, sender)
			if err != nil {
				uid = unknownUser // may read
			}
			for _, c := range s.callers.learn(sender, uid) {
				s.admit(c)
			}
		case <-ctx.Done():
			return
		}
	}
}
